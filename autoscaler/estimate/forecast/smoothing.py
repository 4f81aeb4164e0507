"""Brown's double exponential smoothing: a level and a trend that follow the newest values.

Source: Brown, Smoothing, Forecasting and Prediction, 1963, chapter 9. S' is the exponentially
weighted mean of the values, and S'' that of S'. Level = 2 S' - S'', trend per bin = alpha / (1 -
alpha) (S' - S'').
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from coreforecast.exponentially_weighted import exponentially_weighted_mean

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates

_LOOKBACK = 180
"""Minutes of history that smoothing uses, which limits the time of a forecast."""
_MIN_BINS = 10
"""Known minutes below which smoothing has no forecast."""


@dataclass(frozen=True, slots=True)
class DoubleSmoothing:
    """Forecaster by double exponential smoothing. alpha: weight of the newest value, in (0, 1)."""

    alpha: float
    family: str = "smoothing"
    lookback: int = _LOOKBACK

    @property
    def name(self) -> str:
        """The name for display."""
        return f"smoothing ({self.alpha:g})"

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """The level plus the trend over `steps` bins. An unknown bin counts as the previous bin."""
        rates = rates[-_LOOKBACK:]
        known = np.flatnonzero(~np.isnan(rates))
        if len(known) < _MIN_BINS:
            return NoForecast(f"fewer than {_MIN_BINS} bins are known")
        rates = rates[known[0] :]
        once = exponentially_weighted_mean(rates, self.alpha, skipna=True)
        twice = exponentially_weighted_mean(once, self.alpha)
        ahead = once[-1] - twice[-1]
        level = once[-1] + ahead
        return max(0.0, float(level + steps * ahead * self.alpha / (1.0 - self.alpha)))
