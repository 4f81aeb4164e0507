"""Seasonal naive: as one season ago (Hyndman and Athanasopoulos, Forecasting, section 5.2)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates


@dataclass(frozen=True, slots=True)
class Seasonal:
    """period: bins of a season. label: its length in words."""

    period: int
    label: str
    family: str = "seasonal"

    @property
    def name(self) -> str:
        """For people."""
        return f"seasonal ({self.label})"

    @property
    def reach(self) -> int:
        """A season, and the bin before it."""
        return self.period + 1

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """The mean of the bin one season before the one asked for, and of its two neighbours: a
        single minute is mostly chance."""
        at = len(rates) - 1 + steps
        while at >= len(rates):
            at -= self.period
        around = rates[max(0, at - 1) : at + 2] if at >= 0 else rates[:0]
        known = around[~np.isnan(around)]
        if not len(known):
            return NoForecast(f"no season of {self.label} was seen yet")
        return float(known.mean())
