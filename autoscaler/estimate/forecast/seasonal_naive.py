"""Forecast the value one season earlier (Hyndman and Athanasopoulos, Forecasting, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates


@dataclass(frozen=True, slots=True)
class SeasonalNaive:
    """Seasonal naive forecaster. period: bins per season. label: the length of a season as text."""

    period: int
    label: str
    family: str = "seasonal"

    @property
    def name(self) -> str:
        """The name for display."""
        return f"seasonal ({self.label})"

    @property
    def lookback(self) -> int:
        """The bins of one season, plus one."""
        return self.period + 1

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """Mean of the three bins around the time one season before the forecast time, because a
        single bin would be too noisy."""
        at = len(rates) - 1 + steps
        while at >= len(rates):
            at -= self.period
        around = rates[max(0, at - 1) : at + 2] if at >= 0 else rates[:0]
        known = around[~np.isnan(around)]
        if not len(known):
            return NoForecast(f"no season of {self.label} was seen yet")
        return float(known.mean())
