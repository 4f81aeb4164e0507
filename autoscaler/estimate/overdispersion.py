"""Burstiness of arrivals over 10 s and more: the index of dispersion, and the rate that bursts
reach.

A block is compared with the line through an earlier and a later block, so a daily cycle, a steady
rise or one step does not count as burstiness. A Poisson process whose rate rises or falls along a
line splits the sum n of three blocks multinomially. So (first - 2 x second + third)^2 / (2n) has
mean 1 exactly, even for rates near 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks
from autoscaler.performance.numba_decorators import compiled

_SIGMAS = 3.0
"""Standard errors of the confidence bound; a false burstiness would make every test slower."""
_LAGS = (1, 3)  # distances of compared blocks, in blocks: for bursts of 10 s and of half a minute
_NORMAL = NormalDist()
BURST_S = 3 * BLOCK_S
"""Seconds of the shortest burst for which capacity is added: shorter ones lower the capacity of
instances."""


@dataclass(frozen=True, slots=True)
class Dispersion:
    """The index of dispersion: variance / mean of counts per block; 1 for Poisson arrivals.

    index: the point estimate. confirmed: the index to plan for: 1 if its lower confidence bound is
    at most 1, rising to `index` at a lower bound of 2.
    triples: number of comparisons.
    """

    index: float = 1.0
    confirmed: float = 1.0
    triples: int = 0


POISSON = Dispersion()


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def dispersion(blocks: Blocks) -> Dispersion:
    """The dispersion of `blocks` at the lag with the highest confirmed index; POISSON without
    arrivals.

    With up to 35 triples no burstiness is confirmed, because the standard error sqrt(3.9 / triples)
    is then at least a third of the index.
    """
    numbers = _as_array(blocks)
    return max(
        (_dispersion_at_lag(numbers, lag) for lag in _LAGS),
        key=lambda estimate: (estimate.confirmed, estimate.triples),
    )


def burst_req_per_s(blocks: Blocks, percentile: float, mean_req_per_s: float) -> float:
    """The rate in requests/s that bursts reach: a share `percentile` of requests arrives in half
    minutes with at most this rate. Poisson variation is excluded. Never below `mean_req_per_s`.

    The rate of half minutes is modelled as Gamma distributed, with mean m and variance (D - 1) m in
    counts; D is the confirmed dispersion. A random request falls into a half minute in proportion
    to the rate of that half minute, so its rate is distributed as Gamma(m / (D - 1) + 1, D - 1).
    The quantile uses Wilson and Hilferty's formula. Example: D = 12 at 5 req/s and percentile 0.95
    gives 7.9 req/s. The result never exceeds the highest half minute in `blocks`.
    """
    claimed = dispersion(blocks).confirmed
    if mean_req_per_s == 0.0 or claimed <= 1.0:
        return mean_req_per_s
    scale = claimed - 1.0
    shape = mean_req_per_s * BURST_S / scale + 1.0
    z = _NORMAL.inv_cdf(min(0.9999, max(0.5, percentile)))
    cube = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape))
    wanted = shape * scale * max(0.0, cube) ** 3 / BURST_S
    return max(mean_req_per_s, min(wanted, _highest_rate(blocks)))


def _highest_rate(blocks: Blocks) -> float:
    """The highest rate over three consecutive blocks."""
    highest = 0.0
    for trio in zip(blocks, blocks[1:], blocks[2:], strict=False):
        seconds = sum(covered for covered, _ in trio)
        if seconds >= BURST_S // 2:
            highest = max(highest, sum(count for _, count in trio) / seconds)
    return highest


def _as_array(blocks: Blocks) -> NDArray[np.int64]:
    """`blocks` as an array, (n, 2)."""
    return np.fromiter(chain.from_iterable(blocks), np.int64, 2 * len(blocks)).reshape(-1, 2)


def _dispersion_at_lag(blocks: NDArray[np.int64], lag: int) -> Dispersion:
    triples, index, spread = _triple_moments(blocks, lag)
    if triples < 2:
        return POISSON
    # Squares of triples that share blocks are correlated: by (2/3)^2 at one lag, and (1/6)^2 at
    # two. At a longer lag, neighbouring triples are nearly equal if bursts are long.
    overlap = (1.0 + 2.0 * (4.0 / 9.0 + 1.0 / 36.0) * lag) / triples
    error = math.sqrt(max(2.0 * index * index, spread) * overlap)
    low = max(0.0, index - _SIGMAS * error)
    weight = min(1.0, max(0.0, low - 1.0))
    return Dispersion(index, 1.0 + weight * max(0.0, index - 1.0), triples)


@compiled
def _triple_moments(blocks: NDArray[np.int64], lag: int) -> tuple[int, float, float]:
    """Number of triples with arrivals of `blocks` (n, 2) at distance `lag`; mean and variance of
    their ratios (deviation from a line)^2 / expected. Compiled, because it runs every tick."""
    ratios = np.empty(max(0, len(blocks) - 2 * lag))
    triples = 0
    for at in range(len(ratios)):
        first_s, first = blocks[at]
        second_s, second = blocks[at + lag]
        third_s, third = blocks[at + 2 * lag]
        total = first + second + third
        if total and first_s and second_s and third_s:
            bend = first / first_s - 2.0 * second / second_s + third / third_s
            spread = 1.0 / first_s + 4.0 / second_s + 1.0 / third_s
            ratios[triples] = bend * bend * (first_s + second_s + third_s) / (total * spread)
            triples += 1
    if triples < 2:
        return triples, 0.0, 0.0
    index = ratios[:triples].sum() / triples
    return triples, index, ((ratios[:triples] - index) ** 2).sum() / (triples - 1)
