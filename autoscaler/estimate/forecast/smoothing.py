"""Brown's double exponential smoothing: a level and a trend that follow the newest values.

Owns the formula (Brown, Smoothing, Forecasting and Prediction, 1963, chapter 9); the smoothing
itself is coreforecast's. With S' = the exponentially weighted mean and S'' = that of S':
level = 2 S' - S'', trend per bin = alpha / (1 - alpha) (S' - S'').
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from coreforecast.exponentially_weighted import exponentially_weighted_mean

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates

_REACH = 180
_LEAST = 10


@dataclass(frozen=True, slots=True)
class Smoothing:
    """alpha: weight of the newest value, in (0, 1)."""

    alpha: float
    family: str = "smoothing"
    reach: int = _REACH

    @property
    def name(self) -> str:
        """For people."""
        return f"smoothing ({self.alpha:g})"

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """The trend continued; unknown bins count as the one before them."""
        rates = rates[-_REACH:]
        known = np.flatnonzero(~np.isnan(rates))
        if len(known) < _LEAST:
            return NoForecast(f"fewer than {_LEAST} bins are known")
        rates = rates[known[0] :]
        once = exponentially_weighted_mean(rates, self.alpha, skipna=True)
        twice = exponentially_weighted_mean(once, self.alpha)
        ahead = once[-1] - twice[-1]
        level = once[-1] + ahead
        return max(0.0, float(level + steps * ahead * self.alpha / (1.0 - self.alpha)))
