"""What was asked of a model in one hour, minute by minute: what forecasts are made of.

Owns the meaning of the record. Its key is the model and the hour of the last three days, so that a
compacted topic holds no more than those. Hours are of domain time (`topics.timebase`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks

KEPT_HOURS = 72
MINUTES = 60
UNKNOWN = -1
_MOST_HOURS = 10_000_000


@dataclass(frozen=True, slots=True)
class RateHour:
    """hour: since the epoch. arrivals: of each of its minutes, UNKNOWN where it was not seen."""

    model: str
    hour: int
    leader_token: int
    arrivals: tuple[int, ...]

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.count("hour", self.hour, _MOST_HOURS)
        checks.count("leader_token", self.leader_token)
        checks.number("arrivals", len(self.arrivals), MINUTES, MINUTES)
        for count in self.arrivals:
            checks.number("arrivals", count, UNKNOWN, 10**9)

    @property
    def key(self) -> str:
        """The same for hours that are three days apart."""
        return f"{self.model}/{self.hour % KEPT_HOURS}"
