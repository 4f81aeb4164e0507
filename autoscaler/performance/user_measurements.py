"""Fits a user's own measurements: the ratios of measured to estimated times for one model on one
GPU. Only two factors are fitted, for prompts and for decode iterations, so a short benchmark is
enough. If the points have prompts of two lengths, a third value is fitted: the time outside of
iterations before a first token, which depends on the host. `profile_sources` adds the result to a
profile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from autoscaler.domain.measurement import Measurement
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.benchmark_points import Estimate, MeasuredPoint
from autoscaler.performance.closed_loop import estimate_scaled
from autoscaler.performance.least_squares import Factors, fit
from autoscaler.performance.plausibility import peak_share
from autoscaler.performance.profile import Profile, architecture_key
from autoscaler.performance.profile_sources import without_measurements

_BOUNDS = {"prefill": (1e-3, 1e5), "decode": (1e-3, 1e5), "first_token_ms": (0.1, 1e4)}
# If prompt lengths differ by at least this factor, the time before a first token is fitted
# separately.
_MIN_LENGTH_RATIO = 2.0
_PRIOR = 1e-3
# Weight of TTFT residuals: below 1, because TTFT is noisier than TPOT and depends on how the
# benchmark starts.
_TTFT_WEIGHT = 0.6


def fit_measurement(points: Sequence[MeasuredPoint], profile: Profile, day: str) -> Measurement:
    """The measurement from `points` of one model on `tp` GPUs of one type, relative to `profile`.

    day: date of the measurement, YYYY-MM-DD. Its error is the mean error of TTFT and TPOT at points
    that are held out of the fit one by one; with fewer than three points, the error of the fit
    itself. Raises InvalidValue for points that do not belong together, or that no GPU of this type
    can reach.
    """
    if not points:
        raise InvalidValue("points", 0, "at least one measured point")
    first = points[0]
    for point in points:
        if (point.spec, point.gpu, point.tp) != (first.spec, first.gpu, first.tp):
            raise InvalidValue("points", point.model, "points of one model, GPU type and width")
        if peak_share(point) > 1.0:
            allowed = f"what the data sheet of {first.gpu.name} allows; is this the GPU?"
            raise InvalidValue("TTFT and TPOT", (point.ttft_ms, point.tpot_ms), allowed)
    bare = without_measurements(profile, first)
    found = _fit_factors(points, bare)
    if len(points) < 3:
        errors = [e for p in points for e in _errors(p, estimate_scaled(p, bare, *found))]
    else:
        errors = []
        for left_out in range(len(points)):
            rest = [*points[:left_out], *points[left_out + 1 :]]
            guess = estimate_scaled(points[left_out], bare, *_fit_factors(rest, bare))
            errors += _errors(points[left_out], guess)
    return Measurement(
        architecture=architecture_key(first.spec),
        weight_dtype=first.spec.weight_dtype,
        gpu=first.gpu.name,
        tp=first.tp,
        prefill=round(found.prefill, 5),
        decode=round(found.decode, 5),
        error=round(fmean(errors), 4),
        points=len(points),
        day=day,
        first_token_ms=None if found.first_token_ms is None else round(found.first_token_ms, 3),
    )


class _Factors(NamedTuple):
    prefill: float
    decode: float
    first_token_ms: float | None


def _fit_factors(points: Sequence[MeasuredPoint], profile: Profile) -> _Factors:
    def residuals(factors: Factors) -> list[float]:
        found = []
        for point in points:
            guess = estimate_scaled(
                point, profile, factors["prefill"], factors["decode"], factors.get("first_token_ms")
            )
            if point.ttft_ms is not None:
                found.append(_TTFT_WEIGHT * math.log(guess.ttft_ms / point.ttft_ms))
            if point.tpot_ms is not None:
                found.append(math.log(guess.tpot_ms / point.tpot_ms))
        return found

    # The fit starts at the ratio of times per token, which queues do not distort.
    plain = [estimate_scaled(point, profile, 1.0, 1.0).tpot_ms for point in points]
    ratios = [
        math.log(point.tpot_ms / guess)
        for point, guess in zip(points, plain, strict=True)
        if point.tpot_ms is not None
    ]
    level = math.exp(fmean(ratios)) if ratios else 1.0
    level = min(max(level, 2e-3), 5e4)
    start = {"prefill": level, "decode": level}
    lengths = [point.input_tokens for point in points if point.ttft_ms is not None]
    if lengths and max(lengths) >= _MIN_LENGTH_RATIO * min(lengths):
        least_ms = min(point.ttft_ms for point in points if point.ttft_ms is not None)
        start["first_token_ms"] = 0.5 * least_ms
    best = fit(start, residuals, _BOUNDS, _PRIOR)
    return _Factors(best["prefill"], best["decode"], best.get("first_token_ms"))


def _errors(point: MeasuredPoint, guess: Estimate) -> list[float]:
    found = []
    if point.ttft_ms is not None:
        found.append(abs(guess.ttft_ms / point.ttft_ms - 1.0))
    if point.tpot_ms is not None:
        found.append(abs(guess.tpot_ms / point.tpot_ms - 1.0))
    return found
