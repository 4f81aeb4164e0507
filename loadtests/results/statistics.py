"""Means and 95% confidence intervals over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""97.5% quantiles of Student's t with 1, 2, ... degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds. half_width: of its 95% interval; None for a single value."""

    mean: float
    half_width: float | None

    @property
    def low(self) -> float:
        """The lower end of the interval."""
        return self.mean - (self.half_width or 0.0)

    @property
    def high(self) -> float:
        """The upper end of the interval."""
        return self.mean + (self.half_width or 0.0)


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of independent `values` with its interval by Student's t."""
    if len(values) < 2:
        return Estimate(values[0], None)
    t = _T[min(len(values) - 1, len(_T)) - 1]
    return Estimate(fmean(values), t * stdev(values) / math.sqrt(len(values)))


def relative(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """By which share ours differ from theirs, in pairs of equal seeds."""
    return estimate([a / b - 1.0 for a, b in zip(ours, theirs, strict=True)])


def difference(ours: Sequence[float], theirs: Sequence[float]) -> Estimate:
    """By how much ours differ from theirs, in pairs of equal seeds."""
    return estimate([a - b for a, b in zip(ours, theirs, strict=True)])
