"""Estimate the request lengths to plan for, from declared and measured lengths.

The two errors have different costs. If requests are longer than planned, the fleet is overloaded;
so a mean rises as soon as the lower bound of either window is above the planned mean. If requests
are shorter, the only cost is unused capacity; so a mean falls once the upper bound of the long
window, over many requests and minutes, is below the planned mean and the local window agrees.
Between the bounds the estimate does not change, so noise has no effect and evaluations stay cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.workload import WEIGHTS, Lengths, Spread
from autoscaler.estimate.arrival_counts import since_first_arrival
from autoscaler.estimate.length_distribution import (
    LONGEST,
    SHORTEST,
    clip_lengths,
    fit_to_bounds,
    measured_shape,
    spread_bounds,
)
from autoscaler.estimate.length_samples import (
    DEFAULT_CV,
    LengthSample,
    cv_or_default,
    length_samples,
)
from autoscaler.estimate.length_shift import MIN_REQUESTS, lengths_since_shift
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.prefix_hit import estimate_prefix_hit
from autoscaler.estimate.windows import Stats

STEP = 1.03
"""Factor between two points of the grid of planned lengths: finer steps would evaluate all combos
for nothing."""
PRIOR_REQUESTS = 20
"""Weight of the declared length, in requests."""
LONGER_SIGMAS = 2.5
"""Standard errors by which lengths must exceed the planned ones. Longer lengths count sooner than
shorter ones, because they mean too little capacity."""
CLEAR_SIGMAS = 3.0
"""Standard errors from which longer lengths are clear."""
ONCE_CLEAR_SIGMAS = 1.5
"""Standard errors of the bound to which the planned length rises once longer lengths are clear."""
SHORTER_SIGMAS = 2.0
"""Standard errors of the upper bound to which the planned length may fall."""
SHORTER_MIN_REQUESTS = 300
"""Requests without which shorter lengths are not planned."""
SHORTER_MIN_S = 600
"""Seconds without which shorter lengths are not planned: requests of one minute resemble each
other."""
EARLY_S = 60
"""Seconds from which a large change to shorter lengths counts, with a safety factor."""
EARLY_FACTOR = 1.5
"""Safety factor on an upper bound from at least EARLY_S but less than SHORTER_MIN_S: in recorded
traces the mean of the next ten minutes rarely exceeds the bound of one minute by more."""
_LOG_STEP = math.log(STEP)
_MIN_CHANGE = 1.1
"""Factor by which an early change must shorten the lengths."""
_NEARLY_ALL = 0.9
"""Share of the requests that must have ended, because the long ones end last."""


def estimate_lengths(
    current: Lengths, declared: Lengths, demand: ModelDemand, capacity_exhausted: bool = False
) -> Lengths:
    """The request lengths to plan for; `current` (the present lengths) if there is no evidence for
    a change.

    The estimate starts at `declared`, which counts like 20 measured requests. Means are `declared`
    times powers of 1.03. Example: requests with a CV of 1 become twice as long. The planned mean is
    1.3 times the old one after 50 requests, 1.55 times after 120, 1.8 times after 600.

    After a length shift (see `length_shift`) only requests after the shift may raise a mean. If in
    addition `capacity_exhausted`, only these requests count, and shorter means are accepted as fast
    as longer ones, because on fixed hardware neither error is safe. If a sketch contradicts the
    shape of the distribution significantly and by more than 10%, the shape is measured again. A
    distribution scales with its mean only within the bounds of the measured quantiles: if prompts
    are cut at 4,000 tokens, no point exceeds 4,000 however long the mean is.
    """
    local, long = demand.local_lengths, demand.long_lengths
    thresholds = output_thresholds = _shorter_thresholds(demand)
    if long.completions < _NEARLY_ALL * long.arrivals:
        output_thresholds = replace(thresholds, early=None)
    local_sides, long_sides = length_samples(local), length_samples(long)
    cvs = cv_or_default(long_sides[0]), cv_or_default(long_sides[1])
    shifted_lengths = lengths_since_shift(demand, *cvs)
    now_sides = (
        length_samples(shifted_lengths, cvs) if shifted_lengths is not None else (None, None)
    )
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
    hit = estimate_prefix_hit(current, demand)
    moved = Lengths(inputs[0], outputs[0], inputs[1], outputs[1], prefix_hit=hit)
    return current if moved == current else moved


@dataclass(frozen=True, slots=True)
class _ShorterThresholds:
    """Numbers of requests that the long window needs before a shorter mean is accepted; None: not
    accepted yet.

    early: to accept the upper bound times EARLY_FACTOR; full: to accept the upper bound.
    """

    early: int | None
    full: int | None

    def upper_bound(self, bound: float, requests: int, current: float) -> float:
        """The upper bound to which a mean, planned as `current`, may fall. Infinite if `requests`
        are too few, or if the change is too small to justify a new evaluation of all combos."""
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
    local: LengthSample | None,
    long: LengthSample | None,
    thresholds: _ShorterThresholds,
    shifted_lengths: LengthSample | None,
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
    bounds = spread_bounds(long, local)
    shape = measured_shape(current, declared, long, bounds)
    if shape is None:
        if mean == current[0]:
            return current
        shape = tuple(tokens / current[0] for tokens in current[1])
    if not shape or bounds is None or long is None:
        return mean, clip_lengths(mean * share for share in shape)
    return mean, clip_lengths(fit_to_bounds(np.array(shape), mean, long, bounds))


def _estimate_mean(
    current: float,
    declared: tuple[float, Spread],
    local: LengthSample | None,
    long: LengthSample | None,
    thresholds: _ShorterThresholds,
    shifted: bool,
) -> float:
    longer = max(
        (
            _lower_bound(seen, declared, current)
            for seen in ((local,) if shifted else (local, long))
            if seen is not None
            # saves work: a lower mean cannot have a lower bound above `current`
            and seen.mean > current
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
        return current  # only older requests of the long window are shorter, not the new ones
    return _on_grid(most, declared[0], current, up=False)


def _lower_bound(seen: LengthSample, declared: tuple[float, Spread], current: float) -> float:
    """Lower bound of the mean, in tokens. If the measured mean is clearly longer than `current`,
    the bound is nearer to it."""
    if _mean_bound(seen, declared, -CLEAR_SIGMAS) >= current * STEP:
        return _mean_bound(seen, declared, -ONCE_CLEAR_SIGMAS)
    return _mean_bound(seen, declared, -LONGER_SIGMAS)


def _mean_bound(seen: LengthSample, declared: tuple[float, Spread], sigmas: float) -> float:
    """The measured mean, shrunk towards the declared mean, plus `sigmas` standard errors.

    Shrinking may only make a bound more cautious, so no bound moves beyond the measured mean.
    """
    weight = seen.requests + PRIOR_REQUESTS
    drawn = (PRIOR_REQUESTS * declared[0] + seen.requests * seen.mean) / weight
    mean = min(seen.mean, drawn) if sigmas < 0 else max(seen.mean, drawn)
    expected = _cv_of(declared)
    cv = expected if seen.cv is None else seen.cv
    variance = (PRIOR_REQUESTS * expected**2 + seen.requests * cv**2) / weight
    return mean + sigmas * seen.mean * math.sqrt(variance / weight)


def _on_grid(tokens: float, declared: float, current: float, up: bool) -> float:
    """The grid point between `current` and `tokens` that is nearest to `tokens`; `current` if the
    distance is within one step."""
    exact = math.log(max(SHORTEST, min(LONGEST, tokens)) / declared) / _LOG_STEP
    step = math.floor(exact + 1e-9) if up else math.ceil(exact - 1e-9)
    found = declared if step == 0 else declared * STEP**step
    within = found <= current * (1 + 1e-9) if up else found >= current * (1 - 1e-9)
    return current if within else min(LONGEST, max(SHORTEST, found))


def _cv_of(lengths: tuple[float, Spread]) -> float:
    """Coefficient of variation of a distribution; 1 for a fixed length, because a fixed length is
    an assumption and not a measurement."""
    mean, spread = lengths
    if not spread:
        return DEFAULT_CV
    square = sum(w * x * x for w, x in zip(WEIGHTS, spread, strict=True))
    return math.sqrt(max(0.0, square / mean**2 - 1.0)) or DEFAULT_CV
