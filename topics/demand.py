"""Demand records: telemetry of all gateways, merged per model and micro-batch of a `telemetry`
partition.

Points in time (fields `..._ms`) are append times in domain ms (`streams.clock.of_append`), which at
speed 1 are times of the broker's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from topics import checks
from topics.sketch import is_cells
from topics.telemetry import COUNTS, MOST_IN_FLIGHT, MOST_PER_S

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
            raise checks.InvalidValue("counts", len(self.counts), f"{len(COUNTS)} counts")
        missing = len(COUNTS) - len(self.counts)
        object.__setattr__(self, "counts", (*self.counts, *(0,) * missing))
        for name, count, most in zip(COUNTS, self.counts, MOST_PER_S, strict=True):
            checks.count(name, count, most)
        if not is_cells(self.cells):
            raise checks.InvalidValue(
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
    """All records of one model in one micro-batch of `partition` of `telemetry`.

    (model, partition, last_offset) identifies the record. A repeated record is equal to the first
    one, because the log alone determines a micro-batch.

    appended_s: Domain second in which the broker appended the micro-batch. kinds: Number of
    requests in all `seconds`, by kind, see `Telemetry.sent`. first_offset, last_offset: First
    offset since the previous merged records of the partition, and last offset of the micro-batch;
    -1 in records of older
    workers.
    """

    model: str
    partition: int
    appended_s: int
    seconds: tuple[DemandSecond, ...]
    gateways: tuple[GatewayState, ...]
    kinds: dict[str, int] = field(default_factory=dict)
    first_offset: int = -1
    last_offset: int = -1

    def __post_init__(self) -> None:
        checks.name("model", self.model)
        checks.count("partition", self.partition, 1_000_000)
        checks.count("appended_s", self.appended_s, checks.MAX_MS // 1000)
        checks.number("first_offset", self.first_offset, -1, self.last_offset)
        checks.number("last_offset", self.last_offset, -1, checks.MAX_COUNT)
        for kind, requests in self.kinds.items():
            checks.name("kinds", kind)
            checks.count(f"kinds[{kind}]", requests)
