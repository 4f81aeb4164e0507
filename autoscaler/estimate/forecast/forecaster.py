"""The interface of a forecaster, and its answer if it cannot forecast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoscaler.estimate.forecast.history import Rates


@dataclass(frozen=True, slots=True)
class NoForecast:
    """The answer of a forecaster that cannot forecast. why: the reason as text."""

    why: str


class Forecaster(Protocol):
    """A forecasting method.

    family: value of `policy.forecast` that selects the method; name: unique, for display. lookback:
    number of newest bins that `predict` needs; it gets no more.
    """

    @property
    def family(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def lookback(self) -> int: ...

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """Forecast in requests/s for the bin that is `steps` (at least 1) after the last bin of
        `rates`. `rates` may contain NaN. Pure and deterministic."""
        ...
