"""How far a reader lags behind its topics, including topics with partitions that it is not assigned
yet.
"""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.broker.consumer_lag import ConsumerLag
from streams.clock import Clock
from streams.controller.control_topics import ControlTopics
from streams.ports.telemetry_topic import TelemetryTopic
from topics.time_base import TimeBase
from topics.topic_table import STATUS, TELEMETRY


class Consumer:
    """A consumer that returns no records and calls `meanwhile` during each read.

    As with aiokafka, positions are known only for assigned partitions.
    """

    def __init__(self, assigned: list[TopicPartition], meanwhile: Any) -> None:
        self._assigned, self._meanwhile = frozenset(assigned), meanwhile

    def assignment(self) -> frozenset[TopicPartition]:
        return self._assigned

    async def getmany(self, **_: Any) -> dict[TopicPartition, list[Any]]:
        self._meanwhile()
        return {}

    def highwater(self, part: TopicPartition) -> int:
        assert part in self._assigned
        return 7

    async def position(self, part: TopicPartition) -> int:
        assert part in self._assigned
        return 4

    def last_poll_timestamp(self, _part: TopicPartition) -> None:
        return None


async def test_partitions_added_to_topics_while_they_are_read_stop_no_reader() -> None:
    def ignore(*_: Any) -> None:
        pass

    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    one, two = {TELEMETRY.name: 1, STATUS.name: 1}, {TELEMETRY.name: 2, STATUS.name: 2}
    telemetry = TelemetryTopic("", "", clock, ignore, one)
    control = ControlTopics("", "", one, ignore, ignore, ignore, topics=(STATUS,))

    def reading(name: str, changed: TelemetryTopic | ControlTopics) -> AIOKafkaConsumer:
        assigned = [TopicPartition(name, 0)]
        return cast(AIOKafkaConsumer, Consumer(assigned, lambda: changed.repartition(two)))

    await telemetry._read(reading(TELEMETRY.name, telemetry), ignore)
    await control._read(reading(STATUS.name, control))
    assert telemetry.behind.records == {TELEMETRY.name: 3}
    assert control.behind.records == {STATUS.name: 3}


class Reader:
    """A consumer. The broker reported the end offset `end` of its topics at `polled_s`."""

    def __init__(self, *names: str) -> None:
        self.parts = [TopicPartition(name, 0) for name in names]
        self.end = dict.fromkeys(names, 0)
        self.at = dict.fromkeys(names, 0)
        self.polled_s = dict.fromkeys(names, 0.0)

    def assignment(self) -> list[TopicPartition]:
        return self.parts

    def highwater(self, part: TopicPartition) -> int:
        return self.end[part.topic]

    async def position(self, part: TopicPartition) -> int:
        return self.at[part.topic]

    def last_poll_timestamp(self, part: TopicPartition) -> int:
        return int(self.polled_s[part.topic] * 1000)


class Run:
    """A reader of the topics `names`; its lag is updated once a second of virtual time."""

    def __init__(self, *names: str) -> None:
        self.now_s = 100.0
        self.reader = Reader(*names)
        self.behind = ConsumerLag("", lambda: self.now_s, lambda: self.now_s)

    async def seconds(self, count: int, written: int, read: int, answers: bool = True) -> None:
        """Advance `count` seconds; each second `written` records go to every topic and `read` are
        read.
        """
        for _ in range(count):
            self.now_s += 1.0
            for name in self.reader.end:
                if answers:
                    self.reader.end[name] += written
                    self.reader.polled_s[name] = self.now_s
                ahead = self.reader.at[name] + read
                self.reader.at[name] = min(self.reader.end[name], ahead)
            await self.behind.update(cast(AIOKafkaConsumer, self.reader))


async def test_a_reader_that_keeps_up_has_no_lag_at_any_rate() -> None:
    run = Run("status")
    await run.seconds(60, written=5000, read=5000)
    assert run.behind.late_s() == {}
    await run.seconds(60, written=0, read=5000)
    assert run.behind.late_s() == {}


async def test_lag_is_the_age_of_the_records_being_read() -> None:
    """Lag is the age of the records being read, in seconds.

    With 1,000 records/s written and 750 read for a minute, the lag is a quarter of a minute. 20 s
    after the last write, it is zero.
    """
    run = Run("status")
    await run.seconds(60, written=1000, read=750)
    assert 14.0 <= run.behind.late_s()["status"] <= 16.0
    await run.seconds(10, written=0, read=750)
    assert "status" in run.behind.late_s()
    await run.seconds(11, written=0, read=750)
    assert run.behind.late_s() == {}


async def test_a_reader_lags_while_its_broker_does_not_answer() -> None:
    run = Run("status")
    await run.seconds(5, written=10, read=10)
    await run.seconds(30, written=10, read=10, answers=False)
    assert run.behind.late_s()["status"] == pytest.approx(30.0, abs=1.0)


async def test_hours_of_lag_take_bounded_memory_and_are_not_underestimated() -> None:
    run = Run("status")
    await run.seconds(7200, written=2, read=1)
    assert 3500.0 <= run.behind.late_s()["status"] <= 3700.0
    assert sum(map(len, run.behind._ends.values())) <= 1000


async def test_partitions_that_are_no_longer_read_add_no_lag() -> None:
    run = Run("status", "telemetry")
    await run.seconds(30, written=10, read=1)
    run.reader.parts = [TopicPartition("telemetry", 0)]
    await run.seconds(1, written=10, read=1)
    assert run.behind.late_s().keys() == {"telemetry"}
