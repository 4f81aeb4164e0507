"""A user's own measurements: what benchmark points say of one model on one GPU, over its estimate.

Two factors are fitted, of the time of prompts and of decode iterations, so a short sweep is enough.
What a profile makes of them is in `known`. Knows no files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.measurement import Measurement
from autoscaler.performance.closed_loop import estimate_scaled
from autoscaler.performance.known import without
from autoscaler.performance.leastsquares import fit
from autoscaler.performance.plausible import peak_share
from autoscaler.performance.points import Estimate, MeasuredPoint
from autoscaler.performance.profile import Profile, architecture

_BOUNDS = {"prefill": (1e-3, 1e5), "decode": (1e-3, 1e5)}
_PRIOR = 1e-3
# TTFT in a benchmark is noisier than TPOT and depends on how the benchmark starts.
_TTFT_WEIGHT = 0.6


def measure(points: Sequence[MeasuredPoint], profile: Profile, day: str) -> Measurement:
    """What `points`, of one model on one GPU type and width, say against `profile`.

    day: of the measurement, YYYY-MM-DD. error: of points left out of the fit one by one, TTFT and
    TPOT together; of the fit itself below three points. InvalidValue names what does not fit
    together or what no such GPU can do.
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
    bare = without(profile, first)
    prefill, decode = _fitted(points, bare)
    if len(points) < 3:
        errors = [e for p in points for e in _errors(p, estimate_scaled(p, bare, prefill, decode))]
    else:
        errors = []
        for left_out in range(len(points)):
            rest = [*points[:left_out], *points[left_out + 1 :]]
            guess = estimate_scaled(points[left_out], bare, *_fitted(rest, bare))
            errors += _errors(points[left_out], guess)
    return Measurement(
        architecture=architecture(first.spec),
        weight_dtype=first.spec.weight_dtype,
        gpu=first.gpu.name,
        tp=first.tp,
        prefill=round(prefill, 5),
        decode=round(decode, 5),
        error=round(fmean(errors), 4),
        points=len(points),
        day=day,
    )


def _fitted(points: Sequence[MeasuredPoint], profile: Profile) -> tuple[float, float]:
    def residuals(factors: dict[str, float]) -> list[float]:
        found = []
        for point in points:
            guess = estimate_scaled(point, profile, factors["prefill"], factors["decode"])
            if point.ttft_ms is not None:
                found.append(_TTFT_WEIGHT * math.log(guess.ttft_ms / point.ttft_ms))
            if point.tpot_ms is not None:
                found.append(math.log(guess.tpot_ms / point.tpot_ms))
        return found

    # From the level of the time per token, which no queue blurs, the rest is a short way.
    plain = [estimate_scaled(point, profile, 1.0, 1.0).tpot_ms for point in points]
    ratios = [
        math.log(point.tpot_ms / guess)
        for point, guess in zip(points, plain, strict=True)
        if point.tpot_ms is not None
    ]
    level = math.exp(fmean(ratios)) if ratios else 1.0
    level = min(max(level, 2e-3), 5e4)
    found = fit({"prefill": level, "decode": level}, residuals, _BOUNDS, _PRIOR)  # type: ignore[arg-type]
    return found["prefill"], found["decode"]


def _errors(point: MeasuredPoint, guess: Estimate) -> list[float]:
    found = []
    if point.ttft_ms is not None:
        found.append(abs(guess.ttft_ms / point.ttft_ms - 1.0))
    if point.tpot_ms is not None:
        found.append(abs(guess.tpot_ms / point.tpot_ms - 1.0))
    return found
