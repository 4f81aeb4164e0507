"""Estimate the request lengths to plan for, from declared and measured lengths.

The two errors have different costs. If requests are longer than planned, the fleet is overloaded;
so a mean rises as soon as the lower bound of either window is above the planned mean. If requests
are shorter, the only cost is unused capacity; so a mean falls once the upper bound of the long
window, over many requests and minutes, is below the planned mean and the local window agrees.
Between the bounds the estimate does not change: noise has no effect, and plans hit their caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import LEVELS, WEIGHTS, Lengths, Spread
from autoscaler.estimate.arrival_counts import since_first_arrival
from autoscaler.estimate.length_shift import MIN_REQUESTS, lengths_since_shift
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.sketches import Sketch, bucket_counts
from autoscaler.estimate.windows import Stats, WindowLengths
from autoscaler.performance.numba_decorators import compiled
from topics.sketch import HIGHEST, LOWEST, bucket_value_ms

Floats = npt.NDArray[np.float64]

STEP = 1.03
PRIOR_REQUESTS = 20
LONGER_SIGMAS = 2.5
CLEAR_SIGMAS = 3.0
ONCE_CLEAR_SIGMAS = 1.5
SHORTER_SIGMAS = 2.0
SHORTER_MIN_REQUESTS = 300
SHORTER_MIN_S = 600
EARLY_S = 60
EARLY_FACTOR = 1.5
"""Factor on an upper bound that covers EARLY_S but not SHORTER_MIN_S: in recorded traces the mean
of the next ten minutes rarely exceeds the bound of one minute by more."""
SHAPE_REQUESTS = 100
_SHAPE_SIGMAS = 3.5
_SHAPE_TOLERANCE = 1.1
_DEFAULT_CV = 1.0
_SHORTEST, _LONGEST = 1.0, 1e6
_LOG_STEP = math.log(STEP)
_MIN_CHANGE = 1.1
_NEARLY_ALL = 0.9
_MAX_FACTOR, _BISECTIONS = 16.0, 40
_LEVELS, _LEVEL_WEIGHTS = np.array(LEVELS), np.array(WEIGHTS)
_MIDDLES = np.array([bucket_value_ms(bucket) for bucket in range(LOWEST, HIGHEST + 1)])


@dataclass(frozen=True, slots=True)
class _Sample:
    """Prompts or answers of a window.

    tokens, counts: buckets of the sketch, shortest first. cv: coefficient of variation of the
    sketch; None if the sketch has fewer than two requests.
    """

    requests: int
    mean: float
    tokens: Floats
    counts: Floats
    cv: float | None


def estimate_lengths(
    current: Lengths, declared: Lengths, demand: ModelDemand, capacity_exhausted: bool = False
) -> Lengths:
    """The request lengths to plan for; `current`, the present lengths, if nothing changes.

    The estimate starts at `declared`, which counts like 20 measured requests. Means are `declared`
    times powers of 1.03. Worked value: if requests with a CV of 1 become twice as long, they are
    planned as 1.3 times as long after 50 requests, 1.55 after 120, 1.8 after 600.

    After a length shift (see `length_shift`) only requests after the shift may raise a mean. If in
    addition `capacity_exhausted`, only these requests count, and shorter means are accepted as fast
    as longer ones, because on fixed hardware neither error is safe. If a sketch contradicts the
    shape of the distribution significantly and by more than 10%, the shape is measured again. A
    distribution scales with its mean only within the bounds of the measured quantiles: if prompts
    are cut at 4,000 tokens, a longer mean makes none longer than 4,000.
    """
    local, long = demand.local_lengths, demand.long_lengths
    thresholds = output_thresholds = _shorter_thresholds(demand)
    if long.completions < _NEARLY_ALL * long.arrivals:
        output_thresholds = replace(thresholds, early=None)
    local_sides, long_sides = _samples(local), _samples(long)
    cvs = _cv_or_default(long_sides[0]), _cv_or_default(long_sides[1])
    shifted_lengths = lengths_since_shift(demand, *cvs)
    now_sides = _samples(shifted_lengths, cvs) if shifted_lengths is not None else (None, None)
    if shifted_lengths is not None and capacity_exhausted:
        local_sides, long_sides = now_sides, now_sides
        thresholds = output_thresholds = _ShorterThresholds(MIN_REQUESTS, MIN_REQUESTS)
    inputs = _estimate_side(
        (current.input_tokens, current.inputs),
        (declared.input_tokens, declared.inputs),
        local_sides[0],
        long_sides[0],
        thresholds,
        now_sides[0],
    )
    outputs = _estimate_side(
        (current.output_tokens, current.outputs),
        (declared.output_tokens, declared.outputs),
        local_sides[1],
        long_sides[1],
        output_thresholds,
        now_sides[1],
    )
    moved = Lengths(inputs[0], outputs[0], inputs[1], outputs[1])
    return current if moved == current else moved


@dataclass(frozen=True, slots=True)
class _ShorterThresholds:
    """Requests of the long window that are needed before a shorter mean is accepted; None: not
    accepted yet.

    early: for the upper bound times EARLY_FACTOR; full: for the upper bound.
    """

    early: int | None
    full: int | None

    def upper_bound(self, bound: float, requests: int, current: float) -> float:
        """The accepted upper bound of a mean that is planned as `current`; infinite if `requests`
        are too few or the change is too small to justify a new evaluation of all combos."""
        if self.full is not None and requests >= self.full:
            return bound
        much = (
            self.early is not None
            and requests >= self.early
            and bound * EARLY_FACTOR < current / _MIN_CHANGE
        )
        return EARLY_FACTOR * bound if much else math.inf


def _shorter_thresholds(demand: ModelDemand) -> _ShorterThresholds:
    """The thresholds that apply now. They depend on the time that the long window covers since the
    first arrival."""
    blocks = demand.blocks
    covered_s = demand.long.covered_s if isinstance(demand.long, Stats) else 0
    if blocks:
        covered_s = min(covered_s, sum(seconds for seconds, _ in since_first_arrival(blocks)))
    enough_s = min(SHORTER_MIN_S, 5 * len(blocks)) if blocks else SHORTER_MIN_S
    return _ShorterThresholds(
        MIN_REQUESTS if covered_s >= min(EARLY_S, enough_s) else None,
        SHORTER_MIN_REQUESTS if covered_s >= enough_s else None,
    )


def _estimate_side(
    current: tuple[float, Spread],
    declared: tuple[float, Spread],
    local: _Sample | None,
    long: _Sample | None,
    thresholds: _ShorterThresholds,
    shifted_lengths: _Sample | None,
) -> tuple[float, Spread]:
    """The mean and distribution of prompts or of answers.

    shifted_lengths: requests since a length shift, which alone may raise the mean; None without a
    shift.
    """
    mean = _estimate_mean(
        current[0],
        declared,
        shifted_lengths or local,
        long,
        thresholds,
        shifted_lengths is not None,
    )
    bounds = _spread_bounds(long, local)
    shape = _measured_shape(current, declared, long, bounds)
    if shape is None:
        if mean == current[0]:
            return current
        shape = tuple(tokens / current[0] for tokens in current[1])
    if not shape or bounds is None or long is None:
        return mean, _clipped(mean * share for share in shape)
    return mean, _clipped(_fit_to_bounds(np.array(shape), mean, long, bounds))


def _estimate_mean(
    current: float,
    declared: tuple[float, Spread],
    local: _Sample | None,
    long: _Sample | None,
    thresholds: _ShorterThresholds,
    shifted: bool,
) -> float:
    longer = max(
        (
            _lower_bound(seen, declared, current)
            for seen in ((local,) if shifted else (local, long))
            if seen is not None
            and seen.mean > current  # a lower mean has no lower bound above `current`
        ),
        default=0.0,
    )
    if longer > current:
        return _on_grid(longer, declared[0], current, up=True)
    if long is None or long.mean >= current:
        return current
    most = thresholds.upper_bound(
        _mean_bound(long, declared, SHORTER_SIGMAS), long.requests, current
    )
    if most >= current or (local is not None and local.mean > most):
        return current  # new requests are not shorter; only older requests of the long window are
    return _on_grid(most, declared[0], current, up=False)


def _lower_bound(seen: _Sample, declared: tuple[float, Spread], current: float) -> float:
    """Lower bound of the mean; nearer to the measured mean if that is clearly longer than
    `current`."""
    if _mean_bound(seen, declared, -CLEAR_SIGMAS) >= current * STEP:
        return _mean_bound(seen, declared, -ONCE_CLEAR_SIGMAS)
    return _mean_bound(seen, declared, -LONGER_SIGMAS)


def _mean_bound(seen: _Sample, declared: tuple[float, Spread], sigmas: float) -> float:
    """The measured mean, shrunk towards the declared mean, plus `sigmas` standard errors.

    Shrinking only makes a bound more cautious: no bound moves beyond the measured mean.
    """
    weight = seen.requests + PRIOR_REQUESTS
    drawn = (PRIOR_REQUESTS * declared[0] + seen.requests * seen.mean) / weight
    mean = min(seen.mean, drawn) if sigmas < 0 else max(seen.mean, drawn)
    expected = _cv_of(declared)
    cv = expected if seen.cv is None else seen.cv
    variance = (PRIOR_REQUESTS * expected**2 + seen.requests * cv**2) / weight
    return mean + sigmas * seen.mean * math.sqrt(variance / weight)


def _on_grid(tokens: float, declared: float, current: float, up: bool) -> float:
    """The grid point next to `tokens` on the side of `current`; `current` if the distance is within
    one step."""
    exact = math.log(max(_SHORTEST, min(_LONGEST, tokens)) / declared) / _LOG_STEP
    step = math.floor(exact + 1e-9) if up else math.ceil(exact - 1e-9)
    found = declared if step == 0 else declared * STEP**step
    within = found <= current * (1 + 1e-9) if up else found >= current * (1 - 1e-9)
    return current if within else min(_LONGEST, max(_SHORTEST, found))


@dataclass(frozen=True, slots=True)
class _SpreadBounds:
    """Bounds in tokens of each point of a distribution, at LEVELS, (n,) each. Unknown bounds are 0
    and infinite."""

    low: Floats
    high: Floats


def _spread_bounds(long: _Sample | None, local: _Sample | None) -> _SpreadBounds | None:
    """Bounds of the distribution from the long window; None if it has too few requests. If the
    local window contradicts a bound, the local window's bound replaces it."""
    if long is None or not len(long.counts) or long.counts.sum() < SHAPE_REQUESTS:
        return None
    own = local if local is not None else _Sample(0, 0.0, np.empty(0), np.empty(0), None)
    low, high = np.empty(len(_LEVELS)), np.empty(len(_LEVELS))
    _fill_spread_bounds(
        _LEVELS, long.tokens, long.counts.cumsum(), own.tokens, own.counts.cumsum(), low, high
    )
    return _SpreadBounds(low, high)


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
    own_cumulative: those of the local window, empty if it has no requests.
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


def _tokens_at(seen: _Sample, levels: Floats) -> Floats:
    """For each of `levels`, the length that this share of the requests in `seen` does not
    exceed."""
    cumulative = seen.counts.cumsum()
    return np.array([_length_at(level, seen.tokens, cumulative) for level in levels])


def _fit_to_bounds(shape: Floats, mean: float, long: _Sample, bounds: _SpreadBounds) -> Floats:
    """Points of a distribution with mean `mean` and the given `shape` (in multiples of the mean),
    limited to `bounds`.

    A longer mean does not imply that the longest requests are longer: more requests may be long.
    Points at a bound shift the rest of the mean to the other points. If all points are at a bound,
    each may grow to the bound of the next point.
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


def _clipped(tokens: Iterable[float]) -> Spread:
    return tuple(min(_LONGEST, max(_SHORTEST, float(one))) for one in tokens)


def _measured_shape(
    current: tuple[float, Spread],
    declared: tuple[float, Spread],
    long: _Sample | None,
    bounds: _SpreadBounds | None,
) -> tuple[float, ...] | None:
    """The measured distribution, in multiples of its mean. None unless it contradicts the planned
    distribution both unscaled and scaled to the measured mean."""
    if long is None or bounds is None:
        return None
    most = np.minimum(bounds.high, long.tokens[-1])
    if float((most * _LEVEL_WEIGHTS).sum()) < current[0]:
        return None  # the current lengths were measured before this window
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


def _cv_of(lengths: tuple[float, Spread]) -> float:
    """Coefficient of variation of a distribution; 1 for a fixed length, because a fixed length is
    an assumption and not a measurement."""
    mean, spread = lengths
    if not spread:
        return _DEFAULT_CV
    square = sum(w * x * x for w, x in zip(WEIGHTS, spread, strict=True))
    return math.sqrt(max(0.0, square / mean**2 - 1.0)) or _DEFAULT_CV


def _samples(
    seen: WindowLengths, cvs: tuple[float | None, float | None] = (None, None)
) -> tuple[_Sample | None, _Sample | None]:
    """Samples of prompts and of answers. cvs: coefficients of variation for a side whose sketch is
    empty."""
    return (
        _sample(seen.arrivals, seen.mean_input_tokens, seen.inputs, cvs[0]),
        _sample(seen.completions, seen.mean_output_tokens, seen.outputs, cvs[1]),
    )


def _sample(requests: int, mean: float | None, sketch: Sketch, cv: float | None) -> _Sample | None:
    """The sample of one side; None without requests. cv: coefficient of variation if the sketch is
    empty."""
    if mean is None or mean <= 0.0 or requests <= 0:
        return None
    buckets, seen = bucket_counts(sketch)
    tokens, counts = _MIDDLES[buckets - LOWEST], seen.astype(np.float64)
    return _Sample(requests, mean, tokens, counts, _cv(tokens, counts) if len(counts) else cv)


def _cv_or_default(seen: _Sample | None) -> float:
    return _DEFAULT_CV if seen is None or seen.cv is None else seen.cv


def _cv(tokens: Floats, counts: Floats) -> float | None:
    seen = float(counts.sum())
    if seen < 2:
        return None
    weighted = counts * tokens
    total, squares = float(weighted.sum()), float((weighted * tokens).sum())
    variance = max(0.0, squares - total * total / seen) / (seen - 1)
    return math.sqrt(variance) * seen / total
