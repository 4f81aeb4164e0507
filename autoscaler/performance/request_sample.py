"""The sample of requests for attainment. All engines, rates and percentiles use the same requests
in the same order (common random numbers), so differences between their results are not due to
chance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from autoscaler.domain.validation import finite
from autoscaler.domain.workload import LEVELS, Lengths

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

REQUESTS = 3600
"""Number of requests in a short sample; a long sample has a multiple of it."""
_GAMMA_DRAWS = 64 * REQUESTS
_MAX_STRETCH = 1e9
_BISECTIONS = 40

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Random numbers for a sample, in arrays of shape (count,); each array is evenly spread and
    shuffled. gap: quantile levels in (0, 1). inputs, outputs: normal scores. round_up: in (0, 1); a
    token count is rounded up if its fraction exceeds this number, which preserves the mean.
    """

    gap: Floats
    inputs: Floats
    outputs: Floats
    round_up: Floats


def measured_part(count: int) -> slice:
    """The part of `count` requests whose latencies are measured.

    The first requests are left out, because the engine fills up, and the last ones, because it
    empties.
    """
    return slice(count // 9, count - count // 12)


@lru_cache(maxsize=16)
def draw_numbers(seed: int, count: int = REQUESTS) -> Draws:
    """The `Draws` for `count` requests; equal seeds give equal numbers."""
    random = np.random.default_rng(seed)
    even = (np.arange(count) + 0.5) / count
    scores = np.array([_NORMAL.inv_cdf(level) for level in even])
    gap, inputs, outputs, round_up = (random.permutation(count) for _ in range(4))
    return Draws(even[gap], scores[inputs], scores[outputs], even[round_up])


@lru_cache(maxsize=16)
def unit_arrivals(arrival_cv: float, seed: int, count: int = REQUESTS) -> Floats:
    """Arrival times at a rate of 1 per ms. The gaps are independent and Gamma-distributed, which is
    exponential at CV 1.

    arrival_cv: standard deviation of a gap divided by its mean; 1 / sqrt(n) for an instance that
    gets every n-th of Poisson arrivals (round robin).
    """
    finite("arrival_cv", arrival_cv, 0.05, 20.0)
    level = draw_numbers(seed, count).gap
    if arrival_cv == 1.0:
        gaps = -np.log1p(-level)
    else:
        known = _gamma(arrival_cv, seed)
        gaps = known[(level * len(known)).astype(np.int64)]
    found: Floats = np.cumsum(gaps / gaps.mean())
    return found


@lru_cache(maxsize=32)  # shared by all phases and arrival processes
def sample_lengths(
    lengths: Lengths, most: int, seed: int, count: int = REQUESTS
) -> tuple[Ints, Ints]:
    """Input and output tokens of every request, in sum at most `most`. The arrays are read-only.

    The limit applies because a server refuses a longer prompt and cuts a longer answer. If a
    distribution is cut, the other requests become longer, so that the declared means stay those of
    the served requests.
    """
    drawn = draw_numbers(seed, count)
    inputs = _spread(lengths.input_tokens, lengths.inputs, drawn.inputs)
    at = _correlated_scores(drawn, lengths.together) if lengths.together else drawn.outputs
    outputs = _spread(lengths.output_tokens, lengths.outputs, at)
    longest = np.full(count, max(1.0, most - 1.0))
    prompts = _tokens(_truncate(inputs, longest), drawn.round_up, longest)
    left = np.maximum(most - prompts, 1.0)
    return prompts, _tokens(_truncate(outputs, left), 1.0 - drawn.round_up, left)


def _truncate(tokens: Floats, limits: Floats) -> Floats:
    """`tokens` limited to `limits`. The other values are scaled to keep the mean, as far as the
    limits allow."""
    if (tokens <= limits).all():
        return tokens
    target, low, high = tokens.mean(), 1.0, 2.0
    while np.minimum(high * tokens, limits).mean() < target and high < _MAX_STRETCH:
        low, high = high, 2.0 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if np.minimum(middle * tokens, limits).mean() < target:
            low = middle
        else:
            high = middle
    found: Floats = np.minimum(high * tokens, limits)
    return found


def _correlated_scores(drawn: Draws, correlation: float) -> Floats:
    """The normal scores of outputs, reordered so that they correlate with those of inputs."""
    target = correlation * drawn.inputs + math.sqrt(1.0 - correlation * correlation) * drawn.outputs
    found: Floats = np.empty(len(target))
    found[np.argsort(target, kind="stable")] = np.sort(drawn.outputs)
    return found


def _spread(mean: float, points: tuple[float, ...], at: Floats) -> Floats:
    """Quantiles of a distribution with mean `mean` at the normal scores `at`.

    The logarithm is interpolated linearly in the normal score between the `points`, and
    extrapolated beyond them. This is exact for a lognormal distribution.
    """
    if not points:
        return np.full(len(at), mean)
    score, log = _scores(), np.log(points)
    found = np.interp(at, score, log)
    low = (log[1] - log[0]) / (score[1] - score[0])
    high = (log[-1] - log[-2]) / (score[-1] - score[-2])
    found = np.where(at < score[0], log[0] + low * (at - score[0]), found)
    found = np.exp(np.where(at > score[-1], log[-1] + high * (at - score[-1]), found))
    kept: Floats = found * (mean / found.mean())
    return kept


def _tokens(tokens: Floats, round_up: Floats, most: Floats) -> Ints:
    found: Ints = np.clip(np.floor(tokens + round_up), 1, most).astype(np.int64)
    return found


@lru_cache(maxsize=1)
def _scores() -> Floats:
    return np.array([_NORMAL.inv_cdf(level) for level in LEVELS])


@lru_cache(maxsize=16)
def _gamma(cv: float, seed: int) -> Floats:
    """Sorted draws of a Gamma-distributed gap with coefficient of variation `cv`."""
    return np.sort(np.random.default_rng(seed).standard_gamma(1.0 / (cv * cv), _GAMMA_DRAWS))
