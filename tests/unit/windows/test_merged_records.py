"""Merged records from several writers: each micro-batch of a partition counts once, and none is
skipped.
"""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.estimate.windows import Stats, TelemetryWindows
from streams.clock import Clock, of_append
from streams.controller.demand_sources import gateways_sink
from streams.ports.merged_records import MergedRecords
from topics.demand import Demand, DemandSecond
from topics.telemetry import COUNTS
from topics.time_base import TimeBase

T0_MS = 1_700_000_000_000


class World:
    """Windows that read merged records."""

    def __init__(self, speed: float = 1.0, now_ms: int = T0_MS + 60_000) -> None:
        base = TimeBase(speed, T0_MS, 0)
        self.clock = Clock(base, lambda: int((now_ms - T0_MS) * 1e6), lambda: now_ms)
        self.records = MergedRecords(self.clock)
        self.windows = TelemetryWindows()
        self.sink = gateways_sink(self.windows, {}, lambda: None)

    def take(self, *records: Demand) -> int:
        """Read `records`; returns all arrivals that count since the start."""
        self.records.take(records, self.sink)
        found = [self.windows.stats(model, self.clock.now_ms(), 1800) for model in ("chat", "code")]
        return sum(one.arrivals for one in found if isinstance(one, Stats))


def demand(first: int, last: int, model: str = "chat", at_s: int = 0, partition: int = 0) -> Demand:
    """A micro-batch with one arrival of `model` for each offset."""
    second_ms = T0_MS + at_s * 1000
    counts = (last - first + 1, *[0] * (len(COUNTS) - 1))
    seconds = (DemandSecond(second_ms, counts, ""),)
    return Demand(model, partition, second_ms // 1000, seconds, (), {}, first, last)


def test_a_record_counts_once_however_often_and_late_it_comes() -> None:
    world = World()
    assert world.take(demand(0, 2), demand(0, 2)) == 3
    assert world.take(demand(3, 4, at_s=1), demand(0, 2), demand(3, 4, at_s=1)) == 5


def test_a_record_after_a_hole_waits_until_the_hole_is_merged() -> None:
    """A worker was started after the records of the hole. The controller merges them."""
    world = World()
    assert world.take(demand(0, 2)) == 3
    assert world.take(demand(6, 9, at_s=2)) == 3
    assert world.take(demand(3, 5, at_s=1), demand(6, 9, at_s=2)) == 10
    assert world.records.counted == {0: 10}


def test_models_of_a_micro_batch_may_be_read_at_different_times() -> None:
    """They are in several partitions of `demand`, and one of these is read late."""
    world = World()
    assert world.take(demand(0, 2), demand(3, 5, at_s=1)) == 6
    assert world.take(demand(0, 2, "code"), demand(3, 5, "code", 1)) == 12
    assert world.records.start(0) == 0 and world.records.start(1) is None


def test_partitions_are_independent() -> None:
    world = World()
    assert world.take(demand(0, 2), demand(0, 2, partition=1)) == 6


def test_a_clock_of_the_broker_that_was_set_back_loses_nothing() -> None:
    world = World()
    assert world.take(demand(0, 2, at_s=20), demand(3, 5, at_s=1), demand(6, 8, at_s=2)) == 9


def test_a_topic_that_was_created_again_is_counted_from_its_beginning() -> None:
    world = World()
    assert world.take(demand(0, 90)) == 91
    assert world.take(demand(0, 2, at_s=5), demand(0, 2, "code", 5), demand(3, 3, at_s=6)) == 98
    assert world.records.counted == {0: 4}


@pytest.mark.parametrize("speed", [1.0, 10.0, 30.0])
def test_the_age_of_a_record_is_in_domain_time(speed: float) -> None:
    """A record that ended 2 s ago by the broker's clock is `2 * speed` domain seconds old."""
    world = World(speed)
    append_ms = T0_MS + 58_000
    log_ms = of_append(world.clock.time_base, append_ms)
    now_ms = world.clock.now_ms()
    assert (world.clock.of_log()(np.array([log_ms])) == now_ms - 2000 * speed).all()
    future = world.clock.of_log()(np.array([log_ms + 10_000_000]))
    assert (future == now_ms).all(), "a broker's clock that was set back puts nothing ahead"
