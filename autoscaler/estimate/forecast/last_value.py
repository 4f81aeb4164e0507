"""Forecast the newest value. All other forecasters are compared with this baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates

_NEWEST = 5
"""Minutes among which the newest known value is the forecast; an older value is too old."""


@dataclass(frozen=True, slots=True)
class LastValue:
    """The last-value forecaster."""

    family: str = "last"
    name: str = "last value"
    lookback: int = _NEWEST

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """The newest known value among the last five bins."""
        del steps
        known = rates[-_NEWEST:]
        known = known[~np.isnan(known)]
        return float(known[-1]) if len(known) else NoForecast("the last bins are not known")
