"""Demand from our gateways: read the telemetry topic with aiokafka directly.

This is the hot path: a `getmany` loop over all partitions without a consumer group, because Faust's
cost per message is much higher. Invalid records go to `on_poison` and never stop the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.broker.consumer_lag import ConsumerLag
from streams.broker.kafka_clients import consumer as new_consumer
from streams.clock import Clock, EventsMs
from streams.invalid_records import Forgeries, Poison
from streams.ports.demand_source import Sink
from streams.ports.telemetry_signed import read_signed
from topics.error_text import error_text
from topics.keys import Keys
from topics.macs import Verifier
from topics.telemetry_columns import AGE_MS
from topics.topic_table import TELEMETRY, Topic

log = logging.getLogger(__name__)

_MOST_AT_ONCE = 5000
_TOGETHER = 100  # records per batch; larger batches exceed the processor's caches
_PAUSE_S = 1.0


class TelemetryTopic:
    """All partitions of `telemetry`. partitions: partition count of each topic on this broker, by
    short name. horizon_s: domain seconds of the past that windows need.

    verifier: checks the signatures of gateways and counts failures. embedded: whether the broker is
    the embedded one. That broker cannot map times to offsets, so all of its records are replayed.
    It delays each fetch by the full wait, so the wait is short. open_consumer, monotonic_s: client
    and clock, replaced in simulations.
    """

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        clock: Clock,
        on_poison: Callable[[Poison], None],
        partitions: Mapping[str, int],
        horizon_s: int = 1800,
        embedded: bool = False,
        topic: Topic = TELEMETRY,
        verifier: Verifier | None = None,
        open_consumer: Callable[..., Any] = new_consumer,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap
        self._new_consumer = open_consumer
        self._clock = clock
        self._on_poison = on_poison
        self._forgeries = Forgeries(on_poison, monotonic_s)
        self._verifier = verifier or Verifier(Keys())
        self._horizon_s = horizon_s
        self._embedded = embedded
        self._topic = topic
        self._name = topic.wire_name(prefix)
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
                for partition in self._partitions:  # An added partition is read from its beginning.
                    consumer.seek(partition, self._next.get(partition, 0))
                await self._catch_up(consumer, sink)
                self._live.set()
                while not self._changed:
                    await self._read(consumer, sink)
            except (KafkaError, OSError) as error:
                log.warning("telemetry: lost the broker: %s", error_text(error))
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

    async def live(self) -> None:
        """See `DemandSource.live`."""
        await self._live.wait()

    def _places(self, partitions: Mapping[str, int]) -> list[TopicPartition]:
        count = partitions.get(self._topic.name, self._topic.partitions)
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
            "shoal-telemetry",
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
        past_ms = int(self._horizon_s * 1000 / self._clock.time_base.speed)
        since = self._clock.broker_ms() - past_ms
        ends = await consumer.end_offsets(parts)
        found = await consumer.offsets_for_times(dict.fromkeys(parts, since))
        return {
            # If there is no record since then, start at the end.
            p: ends[p] if found.get(p) is None else max(first[p], found[p].offset)
            for p in parts
        }

    async def _read(self, consumer: AIOKafkaConsumer, sink: Sink) -> None:
        batches = await consumer.getmany(timeout_ms=1000, max_records=_MOST_AT_ONCE)
        events_ms = self._clock.events()
        came = [message for messages in batches.values() for message in messages]
        for first in range(0, len(came), _TOGETHER):
            self._take(came[first : first + _TOGETHER], events_ms, sink)
        for partition, messages in batches.items():
            self._next[partition] = messages[-1].offset + 1
        await self.behind.update(consumer)

    def _take(self, messages: Sequence[Any], events_ms: EventsMs, sink: Sink) -> None:
        """Pass the records of `messages` to the sink."""
        values = [message.value or b"" for message in messages]
        appended_ms = [message.timestamp for message in messages]
        signatures = [message.headers for message in messages]
        found = read_signed(values, signatures, appended_ms, self._verifier)
        for at, error in found.bad.items():
            self._on_poison(self._poison(messages[at], str(error)))
        for at, why in found.refused.items():
            self._forgeries.tell(self._poison(messages[at], why))
        if found.places is not None:
            appended_ms = [appended_ms[at] for at in found.places]
        records = found.records
        sink(records, events_ms(np.array(appended_ms, np.int64), records.numbers[:, AGE_MS]))

    def _poison(self, message: Any, why: str) -> Poison:
        value = message.value or b""
        return Poison(self._topic.name, message.partition, message.offset, value, why)
