"""Read all partitions of a topic with aiokafka directly: the past of the windows, then new records.

This is the hot path: a `getmany` loop without a consumer group, because Faust's cost per message is
much higher.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.broker.consumer_lag import ConsumerLag
from streams.clock import Clock
from streams.invalid_records import Forgeries, Poison
from streams.ports.demand_source import Sink
from streams.ports.merged_records import MergedRecords
from streams.ports.merging import Merging
from topics.edge.kafka_clients import consumer as new_consumer
from topics.error_text import error_text
from topics.keys import Keys
from topics.macs import Verifier
from topics.topic_table import Topic

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 5000
_PAUSE_S = 1.0


class TopicReader(ABC):
    """All partitions of `topic`. partitions: partition count of each topic on this broker, by short
    name. horizon_s: domain seconds of the past that windows need.

    merged: passes merged records to the windows. verifier: checks signatures and counts failures.
    embedded: whether the broker is the embedded one. That broker cannot map times to offsets, so
    all of its records are replayed. It delays each fetch by the full wait, so the wait is short.
    starts: offsets at which reading begins instead, by partition. open_consumer, monotonic_s:
    client and clock, replaced in simulations.
    """

    topic: Topic

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        clock: Clock,
        on_poison: Callable[[Poison], None],
        partitions: Mapping[str, int],
        horizon_s: int = 1800,
        embedded: bool = False,
        verifier: Verifier | None = None,
        open_consumer: Callable[..., Any] = new_consumer,
        monotonic_s: Callable[[], float] = time.monotonic,
        merged: MergedRecords | None = None,
        starts: Mapping[int, int] | None = None,
    ) -> None:
        self._bootstrap = bootstrap
        self._new_consumer = open_consumer
        self.clock = clock
        self.on_poison = on_poison
        self.forgeries = Forgeries(on_poison, monotonic_s)
        self.verifier = verifier or Verifier(Keys())
        self._horizon_s = horizon_s
        self._embedded = embedded
        self._monotonic_s = monotonic_s
        self.merged = merged or MergedRecords(clock)
        self._given = starts or {}
        self._name = self.topic.wire_name(prefix)
        self._partitions = self._places(partitions)
        self._changed = False
        self._next: dict[TopicPartition, int] = {}
        self._live = asyncio.Event()
        self.behind = ConsumerLag(prefix)

    async def replay(self, sink: Sink) -> None:
        """Read from `horizon_s` ago to the current end."""
        consumer = await self._open()
        try:
            self._next = await self._starts(consumer)
            for partition, offset in self._next.items():
                consumer.seek(partition, offset)
            await self._catch_up(consumer, sink)
        finally:
            await consumer.stop()

    async def follow(self, sink: Sink) -> None:
        """Read until cancelled; waits for an unreachable broker and continues at the last
        position."""
        while True:
            consumer = None
            self._changed = False
            try:
                consumer = await self._open()
                self._next = self._next or await self._starts(consumer)
                for partition in self._partitions:  # An added partition is read from its beginning.
                    consumer.seek(partition, self._next.get(partition, 0))
                await self._catch_up(consumer, sink)
                self._live.set()
                while not self._changed:
                    await self._read(consumer, sink)
            except (KafkaError, OSError) as error:
                log.warning("%s: lost the broker: %s", self._name, error_text(error))
                await asyncio.sleep(_PAUSE_S)
            finally:
                if consumer is not None:
                    with contextlib.suppress(KafkaError, OSError):
                        await consumer.stop()

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Apply a changed partition count of the topic."""
        places = self._places(partitions)
        if places != self._partitions:
            log.info("%s has %d partitions now", self._name, len(places))
            self._partitions, self._changed = places, True

    @property
    def lags(self) -> tuple[ConsumerLag, ...]:
        """Lag of each topic that is read."""
        return (self.behind,)

    def merging(self) -> Merging:
        """Return the merger of the telemetry: this process."""
        return Merging()

    async def live(self) -> None:
        """See `DemandSource.live`."""
        await self._live.wait()

    def _places(self, partitions: Mapping[str, int]) -> list[TopicPartition]:
        count = partitions.get(self.topic.name, self.topic.partitions)
        return [TopicPartition(self._name, number) for number in range(count)]

    async def _catch_up(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:
        """Read up to the current end of the topic."""
        ends = await consumer.end_offsets(list(consumer.assignment()))
        for partition, end in ends.items():
            # Transactions leave gaps between offsets, so query the position instead of counting
            # records.
            while await consumer.position(partition) < end:
                await self._read(consumer, sink)

    async def _open(self) -> AIOKafkaConsumer:
        consumer: AIOKafkaConsumer = self._new_consumer(
            self._bootstrap,
            f"shoal-{self.topic.name}",
            fetch_max_wait_ms=40 if self._embedded else 500,
        )
        try:
            await consumer.start()
        except BaseException:
            await consumer.stop()
            raise
        consumer.assign(self._partitions)
        return consumer

    async def _starts(self, consumer: AIOKafkaConsumer) -> dict[TopicPartition, int]:
        parts = list(consumer.assignment())
        first = await consumer.beginning_offsets(parts)
        if self._embedded:
            return dict(first)
        past_ms = int(self._horizon_s * 1000 / self.clock.time_base.speed)
        since = self.clock.broker_ms() - past_ms
        ends = await consumer.end_offsets(parts)
        found = await consumer.offsets_for_times(dict.fromkeys(parts, since))
        return {
            p: self._given.get(p.partition)
            # If there is no record since then, start at the end.
            or (ends[p] if found.get(p) is None else max(first[p], found[p].offset))
            for p in parts
        }

    async def _read(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:
        timeout_ms = self._wait_ms()
        batches = await consumer.getmany(timeout_ms=timeout_ms, max_records=_MOST_AT_ONCE)
        for messages in batches.values():
            self._take(messages, sink)
        for partition, messages in batches.items():
            self._next[partition] = messages[-1].offset + 1
        await self._idle(consumer, sink)
        await self.behind.update(consumer)

    @abstractmethod
    def _take(self, messages: Sequence[Any], sink: Sink) -> None:
        """Pass the records of `messages`, of one partition, to the sink."""

    def _wait_ms(self) -> int:
        """How long to wait for records, in ms."""
        return 1000

    async def _idle(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:  # noqa: B027  a hook
        """Called after each read."""

    def _poison(self, partition: int, offset: int, value: bytes | None, why: str) -> Poison:
        return Poison(self.topic.name, partition, offset, value or b"", why)
