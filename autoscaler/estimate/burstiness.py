"""Burstiness of arrivals within seconds, which the queues of engines absorb. The measure is the
index of dispersion of single seconds, kept as two decaying sums. Longer bursts, for which engines
are sized, are measured in `overdispersion`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.estimate.model_demand import ModelDemand

DECAY_S = 900.0
"""Seconds after which a second of arrivals counts 1/e, so that the burstiness follows the last
quarter of an hour."""
_SIGMAS = 3.0
"""Standard errors by which the index must exceed 1, because the value acts on every plan."""
_MIN_PAIRS = 60.0
"""Pairs of seconds below which burstiness is not measured, because its standard error is then too
large."""


@dataclass(frozen=True, slots=True)
class BurstinessSums:
    """Sums over pairs of neighbouring seconds; older pairs decay.

    total: sum of (difference)^2 / (sum of the two seconds), whose mean is 1 for Poisson arrivals at
    any rate. pairs: number of pairs. end_ms: end of the last second counted.
    """

    pairs: float = 0.0
    total: float = 0.0
    end_ms: int = 0


def update_burstiness(sums: BurstinessSums, demand: ModelDemand) -> BurstinessSums:
    """Add the newest two seconds of `demand`; return `sums` itself if these seconds are counted
    already."""
    end_ms = demand.reported_ms or 0
    if end_ms < sums.end_ms + 2000 or len(demand.recent) < 2:
        return sums
    (one_s, newest), (two_s, both) = demand.recent[:2]
    if (one_s, two_s) != (1, 2) or not both:
        return BurstinessSums(sums.pairs, sums.total, end_ms)
    fade = math.exp(-2.0 / DECAY_S)
    difference = 2 * newest - both
    return BurstinessSums(
        sums.pairs * fade + 1.0, sums.total * fade + difference * difference / both, end_ms
    )


def arrival_cv(sums: BurstinessSums) -> float:
    """Coefficient of variation of the times between arrivals; 1 (Poisson) unless burstiness is
    significant."""
    if sums.pairs < _MIN_PAIRS:
        return 1.0
    index = sums.total / sums.pairs
    error = index * math.sqrt(2.0 / sums.pairs)
    return math.sqrt(index) if index - _SIGMAS * error > 1.0 else 1.0
