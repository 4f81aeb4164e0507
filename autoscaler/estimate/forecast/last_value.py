"""The last value: what was asked in the newest bin will be asked. The measure of all others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.estimate.forecast.forecaster import NoForecast
from autoscaler.estimate.forecast.history import Rates

_NEWEST = 5


@dataclass(frozen=True, slots=True)
class Last:
    """See the module."""

    family: str = "last"
    name: str = "last value"
    reach: int = _NEWEST

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """The newest known value, if it is one of the last five."""
        del steps
        known = rates[-_NEWEST:]
        known = known[~np.isnan(known)]
        return float(known[-1]) if len(known) else NoForecast("the last bins are not known")
