"""Demand records: telemetry of all gateways, merged per model and second of a `telemetry`
partition.

Points in time (fields `..._ms`) are ms since the epoch by the broker's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics import checks
from topics.telemetry import COUNTS, MOST_IN_FLIGHT, MOST_PER_S
from topics.telemetry_columns import parse_cells

FIRST_COUNTS = 8
"""Number of counts that every writer sends."""


@dataclass(frozen=True, slots=True)
class DemandSecond:
    """One second of demand, beginning at start_ms: counts of `telemetry.COUNTS`, and sketches of
    `telemetry.SKETCHES` in their wire form. Counts that an older writer does not send are 0."""

    start_ms: int
    counts: tuple[int, ...]
    cells: str

    def __post_init__(self) -> None:
        checks.time_ms("start_ms", self.start_ms)
        if not FIRST_COUNTS <= len(self.counts) <= len(COUNTS):
            raise checks.InvalidRecord("counts", len(self.counts), f"{len(COUNTS)} counts")
        missing = len(COUNTS) - len(self.counts)
        object.__setattr__(self, "counts", (*self.counts, *(0,) * missing))
        for name, count, most in zip(COUNTS, self.counts, MOST_PER_S, strict=True):
            checks.count(name, count, most)
        if parse_cells(self.cells) is None:
            raise checks.InvalidRecord(
                "cells", self.cells, "cells of 4 characters, digits of base 92"
            )


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The latest report of one gateway about the model, see `Telemetry`. active: whether the
    gateway had requests."""

    gateway: str
    boot: str
    end_ms: int
    in_flight: int
    route_generation: int
    active: bool
    leaving: bool

    def __post_init__(self) -> None:
        checks.name("gateway", self.gateway)
        checks.name("boot", self.boot)
        checks.time_ms("end_ms", self.end_ms)
        checks.count("in_flight", self.in_flight, MOST_IN_FLIGHT)
        checks.count("route_generation", self.route_generation)


@dataclass(frozen=True, slots=True)
class Demand:
    """All records of one model that the broker appended to `partition` of `telemetry` within the
    second `appended_s` (since the epoch).

    (model, partition, appended_s) identifies the record. A repeated record is equal to the first
    one, because merging is deterministic.

    model, partition, appended_s: Part of the record's identity. kinds: Number of requests in all
    `seconds`, by kind, see `Telemetry.sent`.
    """

    model: str
    partition: int
    appended_s: int
    seconds: tuple[DemandSecond, ...]
    gateways: tuple[GatewayState, ...]
    kinds: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.count("partition", self.partition, 1_000_000)
        checks.count("appended_s", self.appended_s, checks.MAX_MS // 1000)
        for kind, requests in self.kinds.items():
            checks.name("kinds", kind)
            checks.count(f"kinds[{kind}]", requests)
