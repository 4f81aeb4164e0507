"""The sample of requests that attainment is reckoned on: the same for every engine and rate.

Owns how shares of requests become a list of requests (common random numbers). Two rates, two GPUs
or two percentiles see the same requests in the same order, so what differs between them is not
chance. Knows no engine.
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
"""In a sample; a long one has a multiple of them."""
_GAMMA_DRAWS = 64 * REQUESTS
_MOST_STRETCH = 1e9
_HALVINGS = 40

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """Numbers in (0, 1), each column evenly spread and shuffled on its own, (count,) each.

    gap: quantile levels.  inputs, outputs: the same as normal scores.  round_up: a token count is
    rounded up where its fraction lies above, so that a mean of 7.3 tokens stays one.
    """

    gap: Floats
    inputs: Floats
    outputs: Floats
    round_up: Floats


def measured(count: int) -> slice:
    """Those of `count` requests that latencies are taken of.

    The first ones meet an engine that is filling up, the last ones an engine that empties.
    """
    return slice(count // 9, count - count // 12)


@lru_cache(maxsize=16)
def draws(seed: int, count: int = REQUESTS) -> Draws:
    """The numbers of `seed`."""
    random = np.random.default_rng(seed)
    even = (np.arange(count) + 0.5) / count
    scores = np.array([_NORMAL.inv_cdf(level) for level in even])
    gap, inputs, outputs, round_up = (random.permutation(count) for _ in range(4))
    return Draws(even[gap], scores[inputs], scores[outputs], even[round_up])


@lru_cache(maxsize=16)
def unit_arrivals(arrival_cv: float, seed: int, count: int = REQUESTS) -> Floats:
    """Arrival times at a rate of 1 per ms: independent Gamma gaps, exponential at CV 1.

    arrival_cv: standard deviation of a gap over its mean. An instance that gets every n-th of
    Poisson arrivals (round robin) sees 1 / sqrt(n).
    """
    finite("arrival_cv", arrival_cv, 0.05, 20.0)
    level = draws(seed, count).gap
    if arrival_cv == 1.0:
        gaps = -np.log1p(-level)
    else:
        known = _gamma(arrival_cv, seed)
        gaps = known[(level * len(known)).astype(np.int64)]
    found: Floats = np.cumsum(gaps / gaps.mean())
    return found


@lru_cache(maxsize=32)  # every phase and every way to arrive has the same
def lengths_of(lengths: Lengths, most: int, seed: int, count: int = REQUESTS) -> tuple[Ints, Ints]:
    """Input and output tokens of every request, at most `most` together; not to be written to.

    Longer requests do not exist: a server refuses the prompt or cuts the answer. The means are of
    the requests as they are served, so where a spread is cut the rest is longer.
    """
    drawn = draws(seed, count)
    inputs = _spread(lengths.input_tokens, lengths.inputs, drawn.inputs)
    at = _beside(drawn, lengths.together) if lengths.together else drawn.outputs
    outputs = _spread(lengths.output_tokens, lengths.outputs, at)
    longest = np.full(count, max(1.0, most - 1.0))
    prompts = _tokens(_cut(inputs, longest), drawn.round_up, longest)
    left = np.maximum(most - prompts, 1.0)
    return prompts, _tokens(_cut(outputs, left), 1.0 - drawn.round_up, left)


def _cut(tokens: Floats, limits: Floats) -> Floats:
    """`tokens` with none above its limit and the mean kept, as far as the limits allow it."""
    if (tokens <= limits).all():
        return tokens
    wanted, low, high = tokens.mean(), 1.0, 2.0
    while np.minimum(high * tokens, limits).mean() < wanted and high < _MOST_STRETCH:
        low, high = high, 2.0 * high
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        if np.minimum(middle * tokens, limits).mean() < wanted:
            low = middle
        else:
            high = middle
    found: Floats = np.minimum(high * tokens, limits)
    return found


def _beside(drawn: Draws, together: float) -> Floats:
    """The normal scores of outputs in another order: so far correlated with those of inputs."""
    wanted = together * drawn.inputs + math.sqrt(1.0 - together * together) * drawn.outputs
    found: Floats = np.empty(len(wanted))
    found[np.argsort(wanted, kind="stable")] = np.sort(drawn.outputs)
    return found


def _spread(mean: float, points: tuple[float, ...], at: Floats) -> Floats:
    """Quantiles of a spread at the normal scores `at`, with its mean kept.

    Between the points the logarithm is linear in the normal score, which is exact for a lognormal
    distribution; beyond the last points it goes on as between the last two.
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
    """Sorted draws of a gap with coefficient of variation `cv`."""
    return np.sort(np.random.default_rng(seed).standard_gamma(1.0 / (cv * cv), _GAMMA_DRAWS))
