"""How long requests are: from what was declared to what is measured, in small steps.

Owns which lengths a model is planned at. Knows nothing of the capacity that follows from them,
except its sign: longer requests mean less of it.

Being wrong costs differently on the two sides. Requests that are longer than believed overload
the fleet, so a mean counts as longer once the lower bound of either window says so. Requests that
are shorter only save money, so a mean counts as shorter once the upper bound of the long window
says so, over many requests and minutes, and the local window does not object. Between the bounds
the estimate stays where it is: noise does not move it, and what it is planned at hits the caches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from autoscaler.domain.workload import LEVELS, WEIGHTS, Lengths, Spread
from autoscaler.estimate.arrival_counts import begun
from autoscaler.estimate.length_shift import LEAST_REQUESTS, since_turn
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.sketches import Sketch, numbers
from autoscaler.estimate.windows import LengthsSeen, Stats
from autoscaler.performance.numba_decorators import compiled
from topics.sketch import HIGHEST, LOWEST, middle_ms

Floats = npt.NDArray[np.float64]

STEP = 1.03
PRIOR_REQUESTS = 20
LONGER_SIGMAS = 2.5
SURE_SIGMAS = 3.0
ONCE_SURE_SIGMAS = 1.5
SHORTER_SIGMAS = 2.0
MANY_REQUESTS = 300
MANY_S = 600
SOON_S = 60
SOON = 1.5
"""What is measured for a minute, but not for ten, counts as this much longer. From any minute of
Azure's, Mooncake's and AIBrix's traces on, the mean of those that arrived in the next ten was at
most 1.35 times the upper bound of those of that minute in 99 of 100 cases."""
SHAPE_REQUESTS = 100
_SHAPE_SIGMAS = 3.5
_SHAPE_TOLERANCE = 1.1
_PLAIN_CV = 1.0
_SHORTEST, _LONGEST = 1.0, 1e6
_LOG_STEP = math.log(STEP)
_WORTH = 1.1
_NEARLY_ALL = 0.9
_MOST_FACTOR, _HALVINGS = 16.0, 40
_AT, _SHARES = np.array(LEVELS), np.array(WEIGHTS)
_MIDDLES = np.array([middle_ms(bucket) for bucket in range(LOWEST, HIGHEST + 1)])


@dataclass(frozen=True, slots=True)
class _Seen:
    """One side (input or output) of a window. tokens, counts: of the sketch's buckets, shortest
    first. cv: the coefficient of variation by it; None where it shows fewer than two requests."""

    requests: int
    mean: float
    tokens: Floats
    counts: Floats
    cv: float | None


def estimate(
    current: Lengths, declared: Lengths, demand: ModelDemand, short: bool = False
) -> Lengths:
    """The lengths to plan at, given those planned at now; `current` itself if nothing moved.

    Start with `declared`, which counts as much as 20 requests that were seen. Means are
    `declared` times powers of 1.03. Worked value: requests with a standard deviation of their
    mean that become twice as long are planned for as 1.3 times as long after 50 of them, 1.55
    after 120, 1.8 after 600. Requests that turned (`demand.turn`) are judged by those since then
    alone, and where the planner cannot add (`short`) shorter ones are then believed as soon as
    longer ones: with the hardware that there is, neither side is the safe one. Where a sketch
    contradicts the shape of the spread, beyond chance and by more than 10%, the shape is measured
    again. A spread goes with its mean as far as the quantiles that were seen allow: where prompts
    are cut at 4,000 tokens, more long ones make the mean longer and none of them.
    """
    local, long = demand.local_lengths, demand.long_lengths
    trust = trust_outputs = _trust(demand)
    if long.completions < _NEARLY_ALL * long.arrivals:
        trust_outputs = replace(trust, soon=None)
    local_sides, long_sides = _sides(local), _sides(long)
    cvs = _cv_seen(long_sides[0]), _cv_seen(long_sides[1])
    now = since_turn(demand, *cvs)
    now_sides = _sides(now, cvs) if now is not None else (None, None)
    if now is not None and short:
        local_sides, long_sides = now_sides, now_sides
        trust = trust_outputs = _Trust(LEAST_REQUESTS, LEAST_REQUESTS)
    inputs = _side(
        (current.input_tokens, current.inputs),
        (declared.input_tokens, declared.inputs),
        local_sides[0],
        long_sides[0],
        trust,
        now_sides[0],
    )
    outputs = _side(
        (current.output_tokens, current.outputs),
        (declared.output_tokens, declared.outputs),
        local_sides[1],
        long_sides[1],
        trust_outputs,
        now_sides[1],
    )
    moved = Lengths(inputs[0], outputs[0], inputs[1], outputs[1])
    return current if moved == current else moved


@dataclass(frozen=True, slots=True)
class _Trust:
    """From how many requests of the long window on shorter ones are believed: with a margin, and
    as measured; None: not yet."""

    soon: int | None
    sure: int | None

    def most(self, bound: float, requests: int, current: float) -> float:
        """What a mean, planned for as `current`, is at most, by its upper bound over so many
        requests; infinite where that is not to be believed, or not worth valuing all anew."""
        if self.sure is not None and requests >= self.sure:
            return bound
        much = self.soon is not None and requests >= self.soon and bound * SOON < current / _WORTH
        return SOON * bound if much else math.inf


def _trust(demand: ModelDemand) -> _Trust:
    """By the time that the long window covers since requests came."""
    blocks = demand.blocks
    covered_s = demand.long.covered_s if isinstance(demand.long, Stats) else 0
    if blocks:
        covered_s = min(covered_s, sum(seconds for seconds, _ in begun(blocks)))
    enough_s = min(MANY_S, 5 * len(blocks)) if blocks else MANY_S
    return _Trust(
        LEAST_REQUESTS if covered_s >= min(SOON_S, enough_s) else None,
        MANY_REQUESTS if covered_s >= enough_s else None,
    )


def _side(
    current: tuple[float, Spread],
    declared: tuple[float, Spread],
    local: _Seen | None,
    long: _Seen | None,
    trust: _Trust,
    now: _Seen | None,
) -> tuple[float, Spread]:
    """now: requests since they turned, which alone may count as longer; None: they did not."""
    mean = _mean(current[0], declared, now or local, long, trust, now is not None)
    bounds = _bounds(long, local)
    shape = _shape(current, declared, long, bounds)
    if shape is None:
        if mean == current[0]:
            return current
        shape = tuple(tokens / current[0] for tokens in current[1])
    if not shape or bounds is None or long is None:
        return mean, _clipped(mean * share for share in shape)
    return mean, _clipped(_within(np.array(shape), mean, long, bounds))


def _mean(
    current: float,
    declared: tuple[float, Spread],
    local: _Seen | None,
    long: _Seen | None,
    trust: _Trust,
    turned: bool,
) -> float:
    longer = max(
        (
            _least(seen, declared, current)
            for seen in ((local,) if turned else (local, long))
            if seen is not None and seen.mean > current  # else no bound is above either
        ),
        default=0.0,
    )
    if longer > current:
        return _on_grid(longer, declared[0], current, up=True)
    if long is None or long.mean >= current:
        return current
    most = trust.most(_bound(long, declared, SHORTER_SIGMAS), long.requests, current)
    if most >= current or (local is not None and local.mean > most):
        return current  # what is new is not shorter: the long window is of another time
    return _on_grid(most, declared[0], current, up=False)


def _least(seen: _Seen, declared: tuple[float, Spread], current: float) -> float:
    """What the mean is at least. Where it is surely longer, less far below what was measured."""
    if _bound(seen, declared, -SURE_SIGMAS) >= current * STEP:
        return _bound(seen, declared, -ONCE_SURE_SIGMAS)
    return _bound(seen, declared, -LONGER_SIGMAS)


def _bound(seen: _Seen, declared: tuple[float, Spread], sigmas: float) -> float:
    """The mean, drawn to the declared one, and `sigmas` standard errors further.

    The declared mean only holds back: it never makes a bound go beyond what was measured.
    """
    weight = seen.requests + PRIOR_REQUESTS
    drawn = (PRIOR_REQUESTS * declared[0] + seen.requests * seen.mean) / weight
    mean = min(seen.mean, drawn) if sigmas < 0 else max(seen.mean, drawn)
    expected = _cv_of(declared)
    cv = expected if seen.cv is None else seen.cv
    variance = (PRIOR_REQUESTS * expected**2 + seen.requests * cv**2) / weight
    return mean + sigmas * seen.mean * math.sqrt(variance / weight)


def _on_grid(tokens: float, declared: float, current: float, up: bool) -> float:
    """The grid point next to `tokens` on the side of `current`, which stays within one step."""
    exact = math.log(max(_SHORTEST, min(_LONGEST, tokens)) / declared) / _LOG_STEP
    step = math.floor(exact + 1e-9) if up else math.ceil(exact - 1e-9)
    found = declared if step == 0 else declared * STEP**step
    within = found <= current * (1 + 1e-9) if up else found >= current * (1 - 1e-9)
    return current if within else min(_LONGEST, max(_SHORTEST, found))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """Between what tokens each point of a spread lies, beyond chance; at LEVELS, (n,) each. What
    is not known is 0, or infinite."""

    low: Floats
    high: Floats


def _bounds(long: _Seen | None, local: _Seen | None) -> _Bounds | None:
    """What the long window says of the spread; None where it has seen too few requests. A bound
    that the local window contradicts is of before: there its own counts."""
    if long is None or not len(long.counts) or long.counts.sum() < SHAPE_REQUESTS:
        return None
    own = local if local is not None else _Seen(0, 0.0, np.empty(0), np.empty(0), None)
    low, high = np.empty(len(_AT)), np.empty(len(_AT))
    _bound_all(_AT, long.tokens, long.counts.cumsum(), own.tokens, own.counts.cumsum(), low, high)
    return _Bounds(low, high)


@compiled
def _length_at(level: float, tokens: Floats, upto: Floats) -> float:
    """The length that this share of the requests does not exceed."""
    rank = min(max(math.ceil(level * upto[-1]), 1.0), upto[-1])
    return float(tokens[np.searchsorted(upto, rank)])


@compiled
def _bound_all(
    levels: Floats,
    tokens: Floats,
    upto: Floats,
    own_tokens: Floats,
    own_upto: Floats,
    low: Floats,
    high: Floats,
) -> None:
    """Write the bounds at `levels` to `low` and `high`, (n,) each. tokens, upto: the long window's
    lengths and its requests up to each; own: the local window's, empty where it has none."""
    for at, level in enumerate(levels):
        chance = _SHAPE_SIGMAS * math.sqrt(level * (1.0 - level) / upto[-1])
        low[at] = _length_at(level - chance, tokens, upto) if chance < level else 0.0
        high[at] = _length_at(level + chance, tokens, upto) if level + chance < 1.0 else math.inf
        if not len(own_upto):
            continue
        chance = _SHAPE_SIGMAS * math.sqrt(level * (1.0 - level) / own_upto[-1])
        shorter = np.searchsorted(own_tokens, low[at], "left")
        under = own_upto[shorter - 1] / own_upto[-1] if shorter else 0.0
        within = np.searchsorted(own_tokens, high[at], "right")
        over = 1.0 - (own_upto[within - 1] / own_upto[-1] if within else 0.0)
        if under > level + chance:
            low[at] = _length_at(level - chance, own_tokens, own_upto)
        if over > 1.0 - level + chance:
            high[at] = _length_at(level + chance, own_tokens, own_upto)


def _tokens_at(seen: _Seen, levels: Floats) -> Floats:
    """The lengths that these shares of the requests in a sketch do not exceed."""
    upto = seen.counts.cumsum()
    return np.array([_length_at(level, seen.tokens, upto) for level in levels])


def _within(shape: Floats, mean: float, long: _Seen, bounds: _Bounds) -> Floats:
    """Points around `mean`, as `shape` has them in means, but within `bounds`.

    That a mean is longer does not say that the longest requests are: more of them may be long. What
    the points at a bound lack the others get, as far as theirs allow; where all are at theirs, a
    point may be as long as the next one.
    """
    spread = mean * shape
    longest = np.maximum(long.tokens[-1], min(mean, long.mean) * shape)
    high = np.maximum.accumulate(np.where(np.isfinite(bounds.high), bounds.high, longest))
    while float((high * _SHARES).sum()) < mean and high[0] < high[-1]:
        high = np.append(high[1:], high[-1])
    low = np.minimum(np.where(bounds.low > 0.0, bounds.low, long.tokens[0]), high)

    def scaled(factor: float) -> Floats:
        points: Floats = np.clip(factor * spread, low, high)
        return points

    least, most = 1.0 / _MOST_FACTOR, _MOST_FACTOR
    for _ in range(_HALVINGS):
        factor = math.sqrt(least * most)
        if float((scaled(factor) * _SHARES).sum()) < mean:
            least = factor
        else:
            most = factor
    points = np.maximum.accumulate(scaled(most))
    result: Floats = points * (mean / float((points * _SHARES).sum()))
    return result


def _clipped(tokens: Iterable[float]) -> Spread:
    return tuple(min(_LONGEST, max(_SHORTEST, float(one))) for one in tokens)


def _shape(
    current: tuple[float, Spread],
    declared: tuple[float, Spread],
    long: _Seen | None,
    bounds: _Bounds | None,
) -> tuple[float, ...] | None:
    """The measured spread in means, where the one in `current` is contradicted, as it is and drawn
    to the measured mean; else None."""
    if long is None or bounds is None:
        return None
    most = np.minimum(bounds.high, long.tokens[-1])
    if float((most * _SHARES).sum()) < current[0]:
        return None  # what is planned for is of another time than the window
    planned = np.array(current[1] or (current[0],) * len(LEVELS))
    scaled = planned * (long.mean / current[0])
    short = np.maximum(planned, scaled) * _SHAPE_TOLERANCE < bounds.low
    far = np.minimum(planned, scaled) > bounds.high * _SHAPE_TOLERANCE
    if not (short | far).any():
        return None
    seen = float(long.counts.sum())
    prior = declared[1] or (declared[0],) * len(LEVELS)
    points = []
    for level, expected, tokens in zip(LEVELS, prior, _tokens_at(long, _AT), strict=True):
        measured = float(tokens) / long.mean
        beyond = seen * min(level, 1.0 - level)  # requests that pin this point down
        weight = beyond / (beyond + 1.0)
        points.append(measured**weight * (expected / declared[0]) ** (1.0 - weight))
    total = sum(w * x for w, x in zip(WEIGHTS, points, strict=True))
    return tuple(accumulate((point / total for point in points), max))


def _cv_of(lengths: tuple[float, Spread]) -> float:
    """The coefficient of variation of a spread; 1 for fixed lengths, which are no measurement."""
    mean, spread = lengths
    if not spread:
        return _PLAIN_CV
    square = sum(w * x * x for w, x in zip(WEIGHTS, spread, strict=True))
    return math.sqrt(max(0.0, square / mean**2 - 1.0)) or _PLAIN_CV


def _sides(
    seen: LengthsSeen, cvs: tuple[float | None, float | None] = (None, None)
) -> tuple[_Seen | None, _Seen | None]:
    """Prompts and answers. cvs: of each, where there is no sketch to take it from."""
    return (
        _seen(seen.arrivals, seen.mean_input_tokens, seen.inputs, cvs[0]),
        _seen(seen.completions, seen.mean_output_tokens, seen.outputs, cvs[1]),
    )


def _seen(requests: int, mean: float | None, sketch: Sketch, cv: float | None) -> _Seen | None:
    """cv: where there is no sketch to take it from."""
    if mean is None or mean <= 0.0 or requests <= 0:
        return None
    buckets, seen = numbers(sketch)
    tokens, counts = _MIDDLES[buckets - LOWEST], seen.astype(np.float64)
    return _Seen(requests, mean, tokens, counts, _cv(tokens, counts) if len(counts) else cv)


def _cv_seen(seen: _Seen | None) -> float:
    return _PLAIN_CV if seen is None or seen.cv is None else seen.cv


def _cv(tokens: Floats, counts: Floats) -> float | None:
    seen = float(counts.sum())
    if seen < 2:
        return None
    weighted = counts * tokens
    total, squares = float(weighted.sum()), float((weighted * tokens).sum())
    variance = max(0.0, squares - total * total / seen) / (seen - 1)
    return math.sqrt(variance) * seen / total
