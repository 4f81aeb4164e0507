"""Demand from our gateways, merged by this process itself: the `telemetry` topic.

Invalid records go to `on_poison` and never stop the reader.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.ports.demand_source import Sink
from streams.ports.micro_batches import PAUSE_MS, MicroBatch, PartitionMerger
from streams.ports.topic_reader import TopicReader
from topics.topic_table import TELEMETRY


class TelemetryTopic(TopicReader):
    """Reads `telemetry` and merges its micro-batches, as window workers do."""

    topic = TELEMETRY

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._mergers: dict[int, PartitionMerger] = {}

    def has_merged(self, ends: Mapping[int, int]) -> bool:
        """Whether every record before the offsets `ends` is merged, by partition."""
        return all(self._merged_until(number) >= end for number, end in ends.items())

    def _merged_until(self, partition: int) -> int:
        merger = self._mergers.get(partition)
        if merger is not None and merger.open is not None:
            return merger.open.offsets[0]
        return self._next.get(TopicPartition(self._name, partition), 0)

    def _take(self, messages: Sequence[Any], sink: Sink) -> None:
        merger = self._merger(messages[0].partition)
        ended = [
            merger.take(one.offset, one.timestamp, one.value or b"", one.headers)
            for one in messages
        ]
        self._count(merger, [batch for batch in ended if batch is not None], sink)

    def _wait_ms(self) -> int:
        if not any(merger.open for merger in self._mergers.values()):
            return super()._wait_ms()
        return max(5, int(PAUSE_MS / self.clock.time_base.speed))

    async def _catch_up(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:
        """Also end the micro-batches that are open then."""
        await super()._catch_up(consumer, sink)
        for merger in [*self._mergers.values()]:
            batch = merger.open
            while batch is not None and merger.open is batch:
                await self._read(consumer, sink)

    async def _idle(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:
        """End the micro-batches that got no record for a while."""
        idle = {number: one for number, one in self._mergers.items() if one.is_idle()}
        if not idle:
            return
        ends = await consumer.end_offsets([TopicPartition(self._name, n) for n in idle])
        for place, end_offset in ends.items():
            merger = idle[place.partition]
            batch = merger.end(end_offset)
            self._count(merger, [] if batch is None else [batch], sink)

    def _count(self, merger: PartitionMerger, batches: Sequence[MicroBatch], sink: Sink) -> None:
        self.merged.take((one for batch in batches for one in merger.merge(batch)), sink)

    def _merger(self, partition: int) -> PartitionMerger:
        known = self._mergers.get(partition)
        if known is None:

            def on_invalid(offset: int, value: bytes, why: str, refused: bool) -> None:
                poison = self._poison(partition, offset, value, why)
                (self.forgeries.tell if refused else self.on_poison)(poison)

            known = self._mergers[partition] = PartitionMerger(
                partition, self.clock.time_base, self.verifier, on_invalid, self._monotonic_s
            )
        return known
