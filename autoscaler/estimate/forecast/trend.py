"""A rate that is rising steadily: how high it surely is a start time later.

Owns the line through the newest blocks, and the tests of whether to continue it: it rises beyond
chance, the newest of the blocks do not contradict it, and a line explains them better than one step
does. Needs no history of errors, so it speaks minutes after traffic begins, where `choose` needs
most of an hour. Idle time before the first request is left out: traffic that starts from zero does
not count as a rise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, begun
from autoscaler.estimate.memoize import remembered
from autoscaler.estimate.overdispersion import dispersion

Floats = npt.NDArray[np.float64]

# Blocks: three to ten minutes. Real traffic rises for a minute or two and falls again.
LENGTHS = (18, 24, 36, 60)
_SURELY = 1.645
_GOES_ON = 0.5  # of a rise that has lasted T, two in three last T / 2 more (Gott, 1993)


@dataclass(frozen=True, slots=True)
class Rising:
    """A steady rise. lasted_s: so long at least. req_per_s: at the end of the blocks, by the line.
    slope: requests/s per second; sure_slope: its lower bound (95%). error: standard deviation of
    the mean that the line goes through."""

    lasted_s: int
    req_per_s: float
    slope: float
    sure_slope: float
    mean_req_per_s: float
    error: float

    def sure_req_per_s(self, ahead_s: float) -> float:
        """The lower bound of the line `ahead_s` later: no rise is trusted for more than half of
        the time that it has lasted for."""
        ahead_s = 0.5 * self.lasted_s + min(ahead_s, _GOES_ON * self.lasted_s)
        spread = (self.slope - self.sure_slope) * ahead_s
        return self.mean_req_per_s + self.slope * ahead_s - math.hypot(spread, _SURELY * self.error)


@remembered(4096)  # blocks change every ten seconds
def rising(blocks: Blocks, significance: float) -> Rising | None:
    """The rise of the newest blocks over the shortest time in which it is beyond chance; None where
    there is none. `significance`: the probability of seeing one where the rate is constant."""
    limit = NormalDist().inv_cdf(1.0 - significance / len(LENGTHS))
    claimed = dispersion(blocks).claimed
    blocks = begun(blocks)[1:]  # the first one is not a whole one
    steepest = math.inf
    for length in LENGTHS:
        newest = blocks[-length:]
        if len(newest) < length or any(covered_s < BLOCK_S for covered_s, _ in newest):
            return None
        counts = np.array([count for _, count in newest], np.float64)
        mean = float(counts.mean())
        at = np.arange(length, dtype=np.float64) - 0.5 * (length - 1)
        squares = float(at @ at)
        slope, error = float(at @ counts) / squares, math.sqrt(claimed * mean / squares)
        contradicted = slope > steepest
        steepest = min(steepest, slope + _SURELY * error)
        if contradicted or slope <= limit * error or not error:
            continue
        if _unexplained(counts, mean + slope * at) < _best_step(counts):
            return Rising(
                length * BLOCK_S,
                (mean + slope * 0.5 * length) / BLOCK_S,
                slope / BLOCK_S**2,
                (slope - _SURELY * error) / BLOCK_S**2,
                mean / BLOCK_S,
                math.sqrt(claimed * mean / length) / BLOCK_S,
            )
    return None


def _unexplained(counts: Floats, means: Floats) -> float:
    """What Poisson counts with these means leave unexplained: half their deviance. A line may fall
    below zero: no mean counts as less than half a request."""
    means = np.maximum(means, 0.5)
    return float((_explained(counts, 1) - counts - counts * np.log(means) + means).sum())


def _best_step(counts: Floats) -> float:
    """The same of two levels, parted where they fit best: between two blocks, or within one, which
    then may be anything. Unweighted squares would make the noise of the higher level hide what a
    line leaves unexplained of the lower one."""
    length, alone = len(counts), _explained(counts, 1)
    sums = np.cumsum(counts)
    first, rest = np.arange(1, length), np.arange(length - 1, 0, -1)
    before, after = _explained(sums[:-1], first), _explained(sums[-1] - sums[:-1], rest)
    within = before[:-1] + alone[1:-1] + after[1:]
    return float(alone.sum() - max((before + after).max(), within.max()))


def _explained(arrivals: Floats, blocks: npt.NDArray[np.int64] | int) -> Floats:
    """Of the likelihood of so many arrivals, what depends on how they are spread: a ln (a / n)."""
    return arrivals * np.log(np.maximum(arrivals, 1.0) / blocks)
