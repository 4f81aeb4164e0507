"""Hourly records of a model: arrivals per minute, and measured start times and capacity. After a
change of leader, forecasts continue from these records. Keys repeat after three days (model, hour
modulo 72), so a compacted topic holds only three days. Hours are in domain time
(`topics.time_base`).
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
class PredictionDrift:
    """How far a model's start times and capacity differ from their predictions.

    start_s: median seconds from launch to ready of the serving instances; equal to the prediction
    if the median is close to it or if too few starts were measured. predicted_s: the prediction for
    these instances, which belong to `combos`. off: whether start time or capacity is far from its
    prediction. worse_since_ms: time since which starts are much slower, or capacity is much lower,
    than predicted.
    """

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
    """One hour of one model.

    hour: Hours since the epoch. arrivals: Arrivals in each minute, UNKNOWN if the minute was not
    observed. derate: Measured / predicted capacity. learnt: Measured start times and capacity.
    basis: Hash of the inputs of the predictions. derate and learnt are valid only for predictions
    with an equal basis.
    """

    model: str
    hour: int
    leader_token: int
    arrivals: tuple[int, ...]
    derate: float = 1.0
    learnt: PredictionDrift = field(default_factory=PredictionDrift)
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
        """The record's key, which repeats after three days."""
        return f"{self.model}/{self.hour % KEPT_HOURS}"
