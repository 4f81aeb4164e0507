"""Detects a steady rise of the rate, and bounds the rate at the time when a new instance would be
ready. A line is fitted to the newest blocks. It is extrapolated if its slope is significant, if the
newest blocks do not contradict the slope, and if it fits better than one step. The method needs no
history of forecast errors, so it works minutes after traffic begins, while `selection` needs most
of an hour. Idle time before the first request is ignored, because traffic that starts from zero is
not a rise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks, since_first_arrival
from autoscaler.estimate.overdispersion import dispersion

Floats = npt.NDArray[np.float64]

# Spans in blocks, from three to ten minutes, because many shorter rises end at once.
TREND_BLOCKS = (18, 24, 36, 60)
_Z = 1.645
"""Standard deviations of a one-sided bound at 95%."""
# share of the rise's duration T so far: two thirds of all rises last at least T / 2 longer (Gott,
# 1993)
_MAX_EXTRAPOLATION = 0.5


@dataclass(frozen=True, slots=True)
class SteadyRise:
    """A steady rise. lasted_s: minimum duration of the rise. req_per_s: the fitted line at the end
    of the blocks. slope: requests/s per second; slope_lower_bound: lower bound (95%) of the slope.
    mean_req_per_s: mean of the blocks, through which the line passes; error: standard deviation of
    this mean."""

    lasted_s: int
    req_per_s: float
    slope: float
    slope_lower_bound: float
    mean_req_per_s: float
    error: float

    def lower_bound_req_per_s(self, ahead_s: float) -> float:
        """Lower bound of the line `ahead_s` later. The line is extrapolated by at most half of the
        rise's duration so far."""
        ahead_s = 0.5 * self.lasted_s + min(ahead_s, _MAX_EXTRAPOLATION * self.lasted_s)
        spread = (self.slope - self.slope_lower_bound) * ahead_s
        return self.mean_req_per_s + self.slope * ahead_s - math.hypot(spread, _Z * self.error)


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def detect_rise(blocks: Blocks, significance: float) -> SteadyRise | None:
    """The rise of the newest blocks, over the shortest span with a significant slope; None without
    a rise.

    significance: probability of detecting a rise at a constant rate.
    """
    limit = NormalDist().inv_cdf(1.0 - significance / len(TREND_BLOCKS))
    confirmed = dispersion(blocks).confirmed
    blocks = since_first_arrival(blocks)[1:]  # without the block in which traffic began
    steepest = math.inf
    for length in TREND_BLOCKS:
        newest = blocks[-length:]
        if len(newest) < length or any(covered_s < BLOCK_S for covered_s, _ in newest):
            return None
        counts = np.array([count for _, count in newest], np.float64)
        mean = float(counts.mean())
        at = np.arange(length, dtype=np.float64) - 0.5 * (length - 1)
        squares = float(at @ at)
        slope, error = float(at @ counts) / squares, math.sqrt(confirmed * mean / squares)
        contradicted = slope > steepest
        steepest = min(steepest, slope + _Z * error)
        if contradicted or slope <= limit * error or not error:
            continue
        if _half_deviance(counts, mean + slope * at) < _best_step_half_deviance(counts):
            return SteadyRise(
                length * BLOCK_S,
                (mean + slope * 0.5 * length) / BLOCK_S,
                slope / BLOCK_S**2,
                (slope - _Z * error) / BLOCK_S**2,
                mean / BLOCK_S,
                math.sqrt(confirmed * mean / length) / BLOCK_S,
            )
    return None


def _half_deviance(counts: Floats, means: Floats) -> float:
    """Half the Poisson deviance of `counts` from `means`. A line may fall below zero, so every mean
    counts as at least half a request."""
    means = np.maximum(means, 0.5)
    return float((_log_likelihood(counts, 1) - counts - counts * np.log(means) + means).sum())


def _best_step_half_deviance(counts: Floats) -> float:
    """Half the Poisson deviance of `counts` from the best step between two levels.

    The step lies between two blocks or within one block; that block may then have any count. Unlike
    squared errors, the Poisson deviance weighs errors at the lower level as well as noise at the
    higher level.
    """
    length, alone = len(counts), _log_likelihood(counts, 1)
    sums = np.cumsum(counts)
    first, rest = np.arange(1, length), np.arange(length - 1, 0, -1)
    before, after = _log_likelihood(sums[:-1], first), _log_likelihood(sums[-1] - sums[:-1], rest)
    within = before[:-1] + alone[1:-1] + after[1:]
    return float(alone.sum() - max((before + after).max(), within.max()))


def _log_likelihood(arrivals: Floats, blocks: npt.NDArray[np.int64] | int) -> Floats:
    """The part of a Poisson log-likelihood that depends on the distribution of arrivals over
    blocks: a ln (a / n)."""
    return arrivals * np.log(np.maximum(arrivals, 1.0) / blocks)
