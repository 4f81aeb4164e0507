"""Growth of a process from samples over time: slope with an interval, in percent per hour."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

_PARTS = 12
"""Parts of a series, whose means are fitted. So waves that are shorter than a part count once."""
_T_10 = 2.228
"""97.5% quantile of Student's t with `_PARTS` - 2 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Slope:
    """mean: of all values, in their unit. percent_per_h: slope relative to the mean, between low
    and high (95%)."""

    mean: float
    percent_per_h: float
    low: float
    high: float


def slope_of(samples: Sequence[tuple[float, float]]) -> Slope | None:
    """The slope of (time in s, value), in order of time. None: too few samples, or all zero."""
    if len(samples) < 2 * _PARTS:
        return None
    began_s, ended_s = samples[0][0], samples[-1][0]
    parts: list[list[tuple[float, float]]] = [[] for _ in range(_PARTS)]
    for at_s, value in samples:
        part = int(_PARTS * (at_s - began_s) / (ended_s - began_s + 1e-9))
        parts[min(part, _PARTS - 1)].append((at_s / 3600.0, value))
    if not all(parts):
        return None
    hours = [fmean(at_h for at_h, _ in part) for part in parts]
    values = [fmean(value for _, value in part) for part in parts]
    mean = fmean(values)
    if mean <= 0.0:
        return None
    at, squares = fmean(hours), sum((hour - fmean(hours)) ** 2 for hour in hours)
    slope = sum((h - at) * (v - mean) for h, v in zip(hours, values, strict=True)) / squares
    rest = [v - mean - slope * (h - at) for h, v in zip(hours, values, strict=True)]
    error = math.sqrt(sum(one * one for one in rest) / (_PARTS - 2) / squares)
    scale = 100.0 / mean
    spread = _T_10 * error
    return Slope(mean, scale * slope, scale * (slope - spread), scale * (slope + spread))
