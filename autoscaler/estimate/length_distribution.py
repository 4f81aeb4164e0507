"""The distribution of request lengths: bounds from measured quantiles, and its shape.

A distribution is a tuple of lengths at LEVELS (`domain.workload`). Its shape is the distribution
in multiples of its mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from autoscaler.domain.workload import LEVELS, WEIGHTS, Spread
from autoscaler.estimate.length_samples import Floats, LengthSample
from autoscaler.performance.numba_decorators import compiled

SHAPE_REQUESTS = 100
"""Minimum of requests in the long window for measuring a distribution."""
SHORTEST, LONGEST = 1.0, 1e6
"""Bounds of a length in tokens."""
_SHAPE_SIGMAS = 3.5
"""Standard deviations by which chance may move a level of the distribution. Several levels are
compared, so it is more than for a single one."""
_SHAPE_TOLERANCE = 1.1
"""Factor by which a planned length may be outside its bounds before it counts as wrong."""
_MAX_FACTOR, _BISECTIONS = 16.0, 40
"""Limits of the search for a scale: the factor, and the number of halvings, enough for floating
point."""
_LEVELS, _LEVEL_WEIGHTS = np.array(LEVELS), np.array(WEIGHTS)


@dataclass(frozen=True, slots=True)
class SpreadBounds:
    """Bounds in tokens of each point of a distribution, at LEVELS, (n,) each. Unknown bounds are 0
    and infinite."""

    low: Floats
    high: Floats


def spread_bounds(long: LengthSample | None, local: LengthSample | None) -> SpreadBounds | None:
    """Bounds of the distribution from the long window; None if it has too few requests. If the
    local window contradicts a bound, the local window's bound replaces it."""
    if long is None or not len(long.counts) or long.counts.sum() < SHAPE_REQUESTS:
        return None
    own = local if local is not None else LengthSample(0, 0.0, np.empty(0), np.empty(0), None)
    low, high = np.empty(len(_LEVELS)), np.empty(len(_LEVELS))
    _fill_spread_bounds(
        _LEVELS, long.tokens, long.counts.cumsum(), own.tokens, own.counts.cumsum(), low, high
    )
    return SpreadBounds(low, high)


@compiled
def _length_at(level: float, tokens: Floats, cumulative: Floats) -> float:
    """The length that a share `level` of the requests does not exceed."""
    rank = min(max(math.ceil(level * cumulative[-1]), 1.0), cumulative[-1])
    return float(tokens[np.searchsorted(cumulative, rank)])


@compiled
def _fill_spread_bounds(
    levels: Floats,
    tokens: Floats,
    cumulative: Floats,
    own_tokens: Floats,
    own_cumulative: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """Write the bounds at `levels` to `low` and `high`, (n,) each.

    tokens, cumulative: lengths in the long window and cumulative numbers of requests; own_tokens,
    own_cumulative: the same for the local window, empty if it has no requests.
    """
    for at, level in enumerate(levels):
        chance = _SHAPE_SIGMAS * math.sqrt(level * (1.0 - level) / cumulative[-1])
        low[at] = _length_at(level - chance, tokens, cumulative) if chance < level else 0.0
        high[at] = (
            _length_at(level + chance, tokens, cumulative) if level + chance < 1.0 else math.inf
        )
        if not len(own_cumulative):
            continue
        chance = _SHAPE_SIGMAS * math.sqrt(level * (1.0 - level) / own_cumulative[-1])
        shorter = np.searchsorted(own_tokens, low[at], "left")
        under = own_cumulative[shorter - 1] / own_cumulative[-1] if shorter else 0.0
        within = np.searchsorted(own_tokens, high[at], "right")
        over = 1.0 - (own_cumulative[within - 1] / own_cumulative[-1] if within else 0.0)
        if under > level + chance:
            low[at] = _length_at(level - chance, own_tokens, own_cumulative)
        if over > 1.0 - level + chance:
            high[at] = _length_at(level + chance, own_tokens, own_cumulative)


def _tokens_at(seen: LengthSample, levels: Floats) -> Floats:
    """For each of `levels`, the length that this share of the requests in `seen` does not
    exceed."""
    cumulative = seen.counts.cumsum()
    return np.array([_length_at(level, seen.tokens, cumulative) for level in levels])


def fit_to_bounds(shape: Floats, mean: float, long: LengthSample, bounds: SpreadBounds) -> Floats:
    """Points of a distribution with mean `mean` and the given `shape` (in multiples of the mean),
    limited to `bounds`.

    A longer mean does not imply that the longest requests are longer: more requests may be long. If
    some points are at a bound, the other points move further, so that the mean is kept. If all
    points are at a bound, each may grow to the bound of the next point.
    """
    spread = mean * shape
    longest = np.maximum(long.tokens[-1], min(mean, long.mean) * shape)
    high = np.maximum.accumulate(np.where(np.isfinite(bounds.high), bounds.high, longest))
    while float((high * _LEVEL_WEIGHTS).sum()) < mean and high[0] < high[-1]:
        high = np.append(high[1:], high[-1])
    low = np.minimum(np.where(bounds.low > 0.0, bounds.low, long.tokens[0]), high)

    def scaled(factor: float) -> Floats:
        points: Floats = np.clip(factor * spread, low, high)
        return points

    least, most = 1.0 / _MAX_FACTOR, _MAX_FACTOR
    for _ in range(_BISECTIONS):
        factor = math.sqrt(least * most)
        if float((scaled(factor) * _LEVEL_WEIGHTS).sum()) < mean:
            least = factor
        else:
            most = factor
    points = np.maximum.accumulate(scaled(most))
    result: Floats = points * (mean / float((points * _LEVEL_WEIGHTS).sum()))
    return result


def clip_lengths(tokens: Iterable[float]) -> Spread:
    return tuple(min(LONGEST, max(SHORTEST, float(one))) for one in tokens)


def measured_shape(
    current: tuple[float, Spread],
    declared: tuple[float, Spread],
    long: LengthSample | None,
    bounds: SpreadBounds | None,
) -> tuple[float, ...] | None:
    """The measured distribution in multiples of its mean, if it contradicts the planned
    distribution both as it is and scaled to the measured mean. None otherwise."""
    if long is None or bounds is None:
        return None
    most = np.minimum(bounds.high, long.tokens[-1])
    if float((most * _LEVEL_WEIGHTS).sum()) < current[0]:
        # no distribution of this window has the current mean, so that is from an older window
        return None
    planned = np.array(current[1] or (current[0],) * len(LEVELS))
    scaled = planned * (long.mean / current[0])
    short = np.maximum(planned, scaled) * _SHAPE_TOLERANCE < bounds.low
    far = np.minimum(planned, scaled) > bounds.high * _SHAPE_TOLERANCE
    if not (short | far).any():
        return None
    seen = float(long.counts.sum())
    prior = declared[1] or (declared[0],) * len(LEVELS)
    points = []
    for level, expected, tokens in zip(LEVELS, prior, _tokens_at(long, _LEVELS), strict=True):
        measured = float(tokens) / long.mean
        beyond = seen * min(level, 1.0 - level)  # requests on the smaller side of this level
        weight = beyond / (beyond + 1.0)
        points.append(measured**weight * (expected / declared[0]) ** (1.0 - weight))
    total = sum(w * x for w, x in zip(WEIGHTS, points, strict=True))
    return tuple(accumulate((point / total for point in points), max))
