"""Samples of request lengths in a window: mean, sketch and coefficient of variation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autoscaler.estimate.sketches import Sketch, bucket_counts
from autoscaler.estimate.windows import WindowLengths
from topics.sketch import HIGHEST, LOWEST, bucket_value_ms

Floats = npt.NDArray[np.float64]

DEFAULT_CV = 1.0
"""Coefficient of variation of lengths without a measurement."""
_MIDDLES = np.array([bucket_value_ms(bucket) for bucket in range(LOWEST, HIGHEST + 1)])


@dataclass(frozen=True, slots=True)
class LengthSample:
    """Prompts or answers of a window.

    tokens, counts: buckets of the sketch, shortest first. cv: coefficient of variation of the
    sketch; None if the sketch has fewer than two requests.
    """

    requests: int
    mean: float
    tokens: Floats
    counts: Floats
    cv: float | None


def length_samples(
    seen: WindowLengths, cvs: tuple[float | None, float | None] = (None, None)
) -> tuple[LengthSample | None, LengthSample | None]:
    """Samples of prompts and of answers. cvs: coefficients of variation to use if the sketch of a
    side is empty."""
    return (
        _sample(seen.arrivals, seen.mean_input_tokens, seen.inputs, cvs[0]),
        _sample(seen.completions, seen.mean_output_tokens, seen.outputs, cvs[1]),
    )


def _sample(
    requests: int, mean: float | None, sketch: Sketch, cv: float | None
) -> LengthSample | None:
    """The sample of one side; None without requests. cv: coefficient of variation if the sketch is
    empty."""
    if mean is None or mean <= 0.0 or requests <= 0:
        return None
    buckets, seen = bucket_counts(sketch)
    tokens, counts = _MIDDLES[buckets - LOWEST], seen.astype(np.float64)
    return LengthSample(requests, mean, tokens, counts, _cv(tokens, counts) if len(counts) else cv)


def cv_or_default(seen: LengthSample | None) -> float:
    return DEFAULT_CV if seen is None or seen.cv is None else seen.cv


def _cv(tokens: Floats, counts: Floats) -> float | None:
    seen = float(counts.sum())
    if seen < 2:
        return None
    weighted = counts * tokens
    total, squares = float(weighted.sum()), float((weighted * tokens).sum())
    variance = max(0.0, squares - total * total / seen) / (seen - 1)
    return math.sqrt(variance) * seen / total
