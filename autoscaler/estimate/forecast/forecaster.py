"""The interface of a forecaster, and its answer without a forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoscaler.estimate.forecast.history import Rates


@dataclass(frozen=True, slots=True)
class NoForecast:
    """The forecaster has no answer. why: as text."""

    why: str


class Forecaster(Protocol):
    """A forecasting method.

    family: value of `policy.forecast` that selects it; name: unique, for display. lookback: number
    of newest bins that it uses; it gets no more.
    """

    @property
    def family(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def lookback(self) -> int: ...

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """Requests/s in the bin `steps` (at least 1) after the last one of `rates`, which may hold
        NaN. Pure and deterministic."""
        ...
