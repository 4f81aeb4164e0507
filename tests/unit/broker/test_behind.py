"""How far a reader is behind, while topics get partitions that it was not assigned yet."""

from __future__ import annotations

import time
from typing import Any, cast

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.clock import Clock
from streams.controller.control_topics import ControlTopics
from streams.ports.telemetry_topic import TelemetryTopic
from topics.table import RATES, TELEMETRY
from topics.timebase import TimeBase


class Consumer:
    """Reads nothing and, meanwhile, something happens; as aiokafka's it knows only its own."""

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


async def test_partitions_added_to_live_topics_while_they_are_read_end_nobody() -> None:
    def ignore(*_: Any) -> None:
        pass

    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    one, two = {TELEMETRY.name: 1, RATES.name: 1}, {TELEMETRY.name: 2, RATES.name: 2}
    telemetry = TelemetryTopic("", "", clock, ignore, one)
    control = ControlTopics("", "", one, ignore, ignore, ignore, topics=(RATES,))

    def reading(name: str, changed: TelemetryTopic | ControlTopics) -> AIOKafkaConsumer:
        assigned = [TopicPartition(name, 0)]
        return cast(AIOKafkaConsumer, Consumer(assigned, lambda: changed.repartition(two)))

    await telemetry._read(reading(TELEMETRY.name, telemetry), ignore)
    await control._read(reading(RATES.name, control))
    assert telemetry.behind.records == {TELEMETRY.name: 3}
    assert control.behind.records == {RATES.name: 3}
