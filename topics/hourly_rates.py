"""What was asked of a model in one hour, minute by minute, and what running it has shown: what
forecasts and the next leader go on from.

Owns the meaning of the record. Its key is the model and the hour of the last three days, so that a
compacted topic holds no more than those. Hours are of domain time (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics import checks

KEPT_HOURS = 72
MINUTES = 60
HOUR_MS = 3_600_000
UNKNOWN = -1
_MOST_HOURS = 10_000_000


@dataclass(frozen=True, slots=True)
class Learnt:
    """start_s: seconds that instances of a model took from launch to ready (the median of those
    that serve), or what was predicted of them where that is near or too few are known; predicted_s:
    of the same ones, which are of `combos`. off: that or the model's capacity is far from its
    prediction; worse_since_ms: since when starts are far later, or capacity far lower."""

    start_s: float = 0.0
    predicted_s: float = 0.0
    combos: tuple[str, ...] = ()
    off: bool = False
    worse_since_ms: int = 0

    def __post_init__(self) -> None:
        checks.number("start_s", self.start_s, 0.0, 1e9)
        checks.number("predicted_s", self.predicted_s, 0.0, 1e9)
        if self.start_s and not self.predicted_s:
            raise checks.InvalidRecord("start_s", self.start_s, "0 where predicted_s is 0")
        checks.time_ms("worse_since_ms", self.worse_since_ms)
        for combo in self.combos:
            checks.combo("combos", combo)


@dataclass(frozen=True, slots=True)
class RateHour:
    """hour: since the epoch. arrivals: of each of its minutes, UNKNOWN where it was not seen.
    derate: measured over predicted capacity, as learnt by then; learnt: the rest of that. basis:
    what the predictions rested on; of others it says nothing."""

    model: str
    hour: int
    leader_token: int
    arrivals: tuple[int, ...]
    derate: float = 1.0
    learnt: Learnt = field(default_factory=Learnt)
    basis: str = ""

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.count("hour", self.hour, _MOST_HOURS)
        checks.count("leader_token", self.leader_token)
        checks.number("derate", self.derate, 0.01, 1.0)
        checks.machine_text("basis", self.basis, 64)
        checks.number("arrivals", len(self.arrivals), MINUTES, MINUTES)
        for count in self.arrivals:
            checks.number("arrivals", count, UNKNOWN, 10**9)

    @property
    def key(self) -> str:
        """The same for hours that are three days apart."""
        return f"{self.model}/{self.hour % KEPT_HOURS}"
