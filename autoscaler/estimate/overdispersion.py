"""How much burstier arrivals are than Poisson ones, and the rate that bursts reach.

Owns the index of dispersion of 10 s blocks, with what it is worth, and the quantile made from it.
Knows nothing of capacity.

Neighbouring blocks are compared with each other and not with the mean of all, so that a rate that
rises and falls over the day, or one step, is no burst: given the sum s of two blocks, a Poisson
process splits it binomially whatever its rate is, so (difference)^2 / s has mean 1 exactly, also
for rates near zero.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from autoscaler.domain.validation import finite
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks
from autoscaler.estimate.memoize import remembered
from autoscaler.performance.numba_decorators import compiled

_SIGMAS = 3.0  # claimed burstiness is beyond chance: one Poisson model in several hundred
_LAGS = (1, 3)  # bursts of a block's length, and those of half a minute
_NORMAL = NormalDist()
BURST_S = 3 * BLOCK_S


@dataclass(frozen=True, slots=True)
class Dispersion:
    """The index of dispersion (variance / mean of counts per block; Poisson: 1).

    index: as measured. low: what is beyond doubt. claimed: what to plan for: 1 unless
    burstiness is beyond doubt, then growing to `index` as `low` grows to 2. likely: `index` where
    Poisson arrivals would hardly show it, however little is known of how bursty these are; else 1.
    pairs: of blocks compared.
    """

    index: float = 1.0
    low: float = 0.0
    claimed: float = 1.0
    likely: float = 1.0
    pairs: int = 0


POISSON = Dispersion()


@remembered(4096)  # blocks change every ten seconds, and are asked about every second
def dispersion(blocks: Blocks) -> Dispersion:
    """The dispersion of `blocks`; POISSON where no two neighbours have requests.

    The lag that claims most counts. A few blocks never claim anything: at 27 pairs or fewer the
    standard error alone, sqrt(3 / pairs), is a third of the index.
    """
    numbers = _numbers(blocks)
    return max(
        (_at_lag(numbers, lag) for lag in _LAGS),
        key=lambda found: (found.claimed, found.pairs),
    )


@remembered(4096)
def likely_dispersion(blocks: Blocks, count: int) -> float:
    """How much burstier than Poisson the last `count` blocks look: what a mean over them is worth
    is less by that. Steps of the rate count too."""
    numbers = _numbers(blocks[-count:])
    return max(_at_lag(numbers, lag).likely for lag in _LAGS)


def burst_req_per_s(blocks: Blocks, percentile: float, mean_req_per_s: float) -> float:
    """The rate such that a share `percentile` of requests come in half minutes of no higher rate,
    leaving out what Poisson chance at the mean explains; never below `mean_req_per_s`.

    Arrivals are taken as Poisson with a rate that varies between half minutes as a Gamma
    distribution of mean m and variance (D - 1) m in counts, D being the claimed dispersion. A
    random request falls into one of rate r in proportion to r, which makes that
    Gamma(m / (D - 1) + 1, D - 1); its quantile is by Wilson and Hilferty. Worked value: D = 12 at
    5 req/s and 0.95 gives 7.9 req/s. Beyond the highest half minute seen nothing is assumed.
    """
    finite("percentile", percentile, 0.0, 1.0)
    finite("mean_req_per_s", mean_req_per_s, 0.0)
    claimed = dispersion(blocks).claimed
    if mean_req_per_s == 0.0 or claimed <= 1.0:
        return mean_req_per_s
    scale = claimed - 1.0
    shape = mean_req_per_s * BURST_S / scale + 1.0
    z = _NORMAL.inv_cdf(min(0.9999, max(0.5, percentile)))
    cube = 1.0 - 1.0 / (9.0 * shape) + z / (3.0 * math.sqrt(shape))
    wanted = shape * scale * max(0.0, cube) ** 3 / BURST_S
    return max(mean_req_per_s, min(wanted, _highest(blocks)))


def _highest(blocks: Blocks) -> float:
    """The highest rate of three blocks in a row."""
    highest = 0.0
    for trio in zip(blocks, blocks[1:], blocks[2:], strict=False):
        seconds = sum(covered for covered, _ in trio)
        if seconds >= BURST_S // 2:
            highest = max(highest, sum(count for _, count in trio) / seconds)
    return highest


def _numbers(blocks: Blocks) -> NDArray[np.int64]:
    """`blocks` as (n, 2)."""
    return np.fromiter(chain.from_iterable(blocks), np.int64, 2 * len(blocks)).reshape(-1, 2)


def _at_lag(blocks: NDArray[np.int64], lag: int) -> Dispersion:
    pairs, index, spread = _moments(blocks, lag)
    if pairs < 2:
        return POISSON
    # Squares of neighbouring differences are correlated by 1/4; at a longer lag those in between
    # are as good as copies where bursts are long.
    overlap = (1.0 + 0.5 * lag) / pairs
    error = math.sqrt(max(2.0 * index * index, spread) * overlap)
    low = max(0.0, index - _SIGMAS * error)
    weight = min(1.0, max(0.0, low - 1.0))
    likely = index if index > 1.0 + _SIGMAS * math.sqrt(2.0 * overlap) else 1.0
    return Dispersion(index, low, 1.0 + weight * max(0.0, index - 1.0), likely, pairs)


@compiled
def _moments(blocks: NDArray[np.int64], lag: int) -> tuple[int, float, float]:
    """How many pairs of `blocks`, (n, 2), that far apart have requests; the mean of their ratios
    (difference)^2 / expected, and its variance. Looked at every tick, so it is compiled."""
    ratios = np.empty(max(0, len(blocks) - lag))
    pairs = 0
    for at in range(len(ratios)):
        first_s, first = blocks[at]
        second_s, second = blocks[at + lag]
        total = first + second
        if total and first_s and second_s:
            share = first_s / (first_s + second_s)
            mean = total * share
            ratios[pairs] = (first - mean) ** 2 / (mean * (1.0 - share))
            pairs += 1
    if pairs < 2:
        return pairs, 0.0, 0.0
    index = ratios[:pairs].sum() / pairs
    return pairs, index, ((ratios[:pairs] - index) ** 2).sum() / (pairs - 1)
