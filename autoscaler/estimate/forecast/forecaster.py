"""The interface of a forecast, and its answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoscaler.estimate.forecast.history import Rates


@dataclass(frozen=True, slots=True)
class NoForecast:
    """This method has no answer here. why: in words."""

    why: str


class Strategy(Protocol):
    """One way to look ahead. family: as `policy.forecast` names it; name: unique, for people.

    reach: how many of the newest bins it looks at; it is given no more.
    """

    @property
    def family(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def reach(self) -> int: ...

    def predict(self, rates: Rates, steps: int) -> float | NoForecast:
        """Requests/s in the bin `steps` (at least 1) after the last one of `rates`, which may hold
        NaN. Pure, and the same for the same input."""
        ...
