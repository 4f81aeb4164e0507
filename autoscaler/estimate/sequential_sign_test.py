"""A sign test that is valid at every moment, however often it is looked at.

Each trial is above or below a margin. The hypothesis is that the next trial is above it with a
probability of at most one half, whatever happened before; nothing else about the distribution is
assumed. The evidence against it is the mean of the likelihood ratios (2p)^above (2(1-p))^below over
p in [1/2, 1]. Under the hypothesis it is a supermartingale that starts at 1, so by Ville's
inequality it ever reaches 1/level with a probability of at most `level` (Howard, Ramdas et al.,
"Time-uniform, nonparametric, nonasymptotic confidence sequences", 2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

_EXACT = 400
"""Trials up to which the evidence is computed exactly."""


@dataclass(frozen=True, slots=True)
class SignTest:
    """Numbers of trials above and below the margin."""

    above: int = 0
    below: int = 0

    def counted(self, is_above: bool) -> SignTest:
        """The test after one more trial."""
        return SignTest(self.above + is_above, self.below + (not is_above))

    @property
    def trials(self) -> int:
        """The number of trials."""
        return self.above + self.below

    @property
    def log_evidence(self) -> float:
        """The natural logarithm of the evidence. The integral of the binomial likelihood over p is
        a partial sum of binomial coefficients; after many trials, a bound below it is used."""
        more = self.trials + 1
        if self.trials > _EXACT:
            whole = math.lgamma(self.above + 1) + math.lgamma(self.below + 1)
            whole += more * math.log(2.0) - math.lgamma(more + 1)
            # The sum holds at least half of all coefficients if most trials are above.
            return whole - math.log(2.0) if self.above > self.below else min(0.0, whole)
        term = total = 1
        for at in range(self.above):
            term = term * (more - at) // (at + 1)
            total += term
        return math.log(total) - math.log(more * math.comb(self.trials, self.above))

    def rejects(self, level: float) -> bool:
        """Whether the evidence refutes the hypothesis at `level`."""
        return self.above > self.below and self.log_evidence >= -math.log(level)
