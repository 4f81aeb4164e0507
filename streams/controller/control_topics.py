"""Read the control topics: their last values at the start, then every new record.

One consumer without a consumer group keeps its positions across reconnections. It reads only the
necessary part of the past. The caller's `on_record` interprets the records.

Uses aiokafka without Faust, because each controller reads all partitions and needs no consumer
group.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.broker.consumer_lag import ConsumerLag
from streams.controller.topic_span import Group, Span
from streams.invalid_records import Forgeries, Poison
from streams.loop.control_state import RecordRefused
from topics.checks import InvalidValue
from topics.codec import decode
from topics.edge.kafka_clients import consumer as new_consumer
from topics.error_text import error_text
from topics.keys import SIGNER, Keys
from topics.macs import Verifier
from topics.signing import BODY_SIGNED_TOPICS, Refusal
from topics.topic_table import (
    ALERTS,
    ASSIGNMENTS,
    AVAILABILITY,
    CONTROLS,
    DEAD_LETTERS,
    DECISIONS,
    LEADERSHIP,
    LEDGER,
    NAMES,
    PLANS,
    PRICES,
    ROUTES,
    SERVICES,
    STATUS,
    Cleanup,
    Topic,
    key_of,
    short_name,
)

log = logging.getLogger(__name__)

FOLLOWED: tuple[Topic, ...] = (
    LEADERSHIP, NAMES, SERVICES, ASSIGNMENTS, ROUTES, DECISIONS, PLANS, LEDGER, AVAILABILITY,
    PRICES, CONTROLS, ALERTS, DEAD_LETTERS, STATUS,
)  # fmt: skip

NO_KEYS = Keys()
_MOST_OF_THE_PAST = 5000
_FIRST_CHUNK = 2000
_HEARTBEATS_MS = 60_000
_HEARTBEATS = 30
_FURTHER = 10
_PAUSE_S = 0.5
_SOON_S = 0.02
_AT_ONCE = 5000

OnRecord = Callable[[str, Any, int, int], None]
"""(short topic name, record, offset, append time in ms of the broker's clock). It raises
RecordRefused for a record with invalid values; any other exception ends `follow`."""


class ControlTopics:
    """Consumer of the control topics. partitions: partition count of each topic on this broker, by
    short name.

    on_gone: called with (short topic name, key) of each tombstone. expected: keys of `status` that
    the initial read must find even if their last record is old.

    on_key: called with (short topic name, key) of each record with a value, valid or not.

    on_created: called with the short name of a topic that was deleted and created again.

    verifier: checks signatures and counts failures. A record that fails the check is reported as
    invalid, within the limit of `Forgeries`. If it is an assignment or routes, on_forged gets it
    too.

    open_consumer, monotonic_s: client and clock, replaced in simulations.
    """

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        partitions: Mapping[str, int],
        on_record: OnRecord,
        on_gone: Callable[[str, str], None],
        on_poison: Callable[[Poison], None],
        expected: Callable[[], Iterable[str]] = lambda: (),
        embedded: bool = False,
        topics: Iterable[Topic] = FOLLOWED,
        verifier: Verifier | None = None,
        on_forged: Callable[[Any], None] = lambda _record: None,
        on_key: Callable[[str, bytes | None], None] = lambda _topic, _key: None,
        on_created: Callable[[str], None] = lambda _topic: None,
        open_consumer: Callable[..., Any] = new_consumer,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_key = on_key
        self._on_created = on_created
        self._new_consumer = open_consumer
        self._verifier = verifier or Verifier(NO_KEYS)
        self._forgeries = Forgeries(on_poison, monotonic_s)
        self._on_forged = on_forged
        self._bootstrap = bootstrap
        self._prefix = prefix
        self._on_record = on_record
        self._on_gone = on_gone
        self._on_poison = on_poison
        self._expected = expected
        self._embedded = embedded
        self._topics = {t.name: t for t in topics}
        self._partitions = self._places(partitions)
        self._next: dict[TopicPartition, int] = {}
        self._consumer: AIOKafkaConsumer | None = None
        self._changed = False
        self._again: set[str] = set()
        self.behind = ConsumerLag(prefix)

    async def start(self, timeout_s: float = 60.0) -> None:
        """Read the last value of every key. TimeoutError after `timeout_s` real seconds."""
        self._consumer = await self._open()
        async with asyncio.timeout(timeout_s):
            await self._read_last_values(self._consumer)

    async def follow(self) -> None:
        """Read new records until cancelled. After a lost connection, reading continues at the last
        position."""
        while True:
            try:
                if self._consumer is None:
                    self._consumer = await self._open()
                    await self._seek(self._consumer)
                while not self._changed:
                    await self._read(self._consumer)
            except (KafkaError, OSError) as error:
                log.warning("control topics: lost the broker: %s", error_text(error))
                await asyncio.sleep(_PAUSE_S)
            self._changed = False
            await self.close()

    async def caught_up(self) -> None:
        """Wait until every record that the topics hold now has been passed on. `follow` must be
        running."""
        while True:
            reading: Any = self._consumer
            with contextlib.suppress(KafkaError, OSError):
                if reading is not None and await self._reaches_the_end(reading):
                    return
            await asyncio.sleep(_SOON_S)

    async def _reaches_the_end(self, reading: Any) -> bool:
        """Whether `reading` reached the current ends of the topics before another consumer replaced
        it. A position beyond the end belongs to a deleted topic, and nothing of the new one is
        read."""
        before = {part: await reading.position(part) for part in self._partitions}
        ends = await reading.end_offsets(list(self._partitions))
        if any(before[part] > end for part, end in ends.items()):
            return False
        this: object = reading
        while this is self._consumer:
            positions = {part: await reading.position(part) for part in ends}
            if all(positions[part] >= end for part, end in ends.items()):
                return True
            await asyncio.sleep(_SOON_S)
        return False

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Apply changed partition counts; new partitions are read from the beginning."""
        places = self._places(partitions)
        if places != self._partitions:
            self._partitions, self._changed = places, True

    def reread(self, topic: str) -> None:
        """Read the topic with the short name `topic` again from its beginning. `follow` must be
        running."""
        self._again.add(topic)
        self._changed = True

    async def _seek(self, consumer: AIOKafkaConsumer) -> None:
        """Continue at the last positions. Topics to be read again begin with their first record."""
        again = [p for p in self._partitions if short_name(p.topic, self._prefix) in self._again]
        self._next |= await consumer.beginning_offsets(again) if again else {}
        self._again.clear()
        for part in self._partitions:
            consumer.seek(part, self._next.get(part, 0))

    async def close(self) -> None:
        """Close the consumer. If `follow` is running, it opens another consumer."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaError, OSError):
                await consumer.stop()

    def _places(self, partitions: Mapping[str, int]) -> list[TopicPartition]:
        return [
            TopicPartition(topic.wire_name(self._prefix), number)
            for name, topic in self._topics.items()
            for number in range(partitions.get(name, topic.partitions))
        ]

    async def _open(self) -> AIOKafkaConsumer:
        made: AIOKafkaConsumer = self._new_consumer(
            self._bootstrap,
            "shoal-control",
            # Kafka answers a fetch at the first byte. The embedded broker always waits this long.
            fetch_max_wait_ms=40 if self._embedded else 500,
            isolation_level="read_uncommitted" if self._embedded else "read_committed",
            max_partition_fetch_bytes=8 * 1024 * 1024,
        )
        try:
            await made.start()
        except BaseException:
            await made.stop()
            raise
        made.assign(self._partitions)
        return made

    async def _read(self, consumer: AIOKafkaConsumer) -> None:
        batches = await consumer.getmany(timeout_ms=1000, max_records=_AT_ONCE)
        for part, messages in batches.items():
            self._continue_at(part, messages[0].offset)
            name = short_name(part.topic, self._prefix)
            for message in messages:
                self._fold(name, message)
            self._next[part] = messages[-1].offset + 1
        for part in consumer.assignment():
            self._continue_at(part, await consumer.position(part))
        await self.behind.update(consumer)

    def _continue_at(self, part: TopicPartition, offset: int) -> None:
        """Note that `part` is read on from `offset`. The client goes back only if the end is
        before the position: then the topic was created again."""
        if offset < self._next.get(part, 0):
            self._next[part] = offset
            self._on_created(short_name(part.topic, self._prefix))

    def _fold(self, name: str, message: Any) -> None:
        key = (message.key or b"").decode(errors="replace")
        if message.value is not None:
            self._on_key(name, message.key)
        refused = self._verifier.refusal(
            name, message.key, message.value, message.headers, message.timestamp
        )
        if refused is not None and (message.value is None or name not in BODY_SIGNED_TOPICS):
            self._refuse(name, message, refused)
            return
        if message.value is None:
            self._on_gone(name, key)
            return
        try:
            record = decode(name, message.value)
        except InvalidValue as error:
            if refused is not None:
                self._refuse(name, message, refused)
                return
            why = str(error)
            self._on_poison(Poison(name, message.partition, message.offset, message.value, why))
            return
        if refused is not None:
            self._refuse(name, message, refused)
            self._on_forged(record)
            return
        if name in SIGNER:
            refused = self._verifier.check_owner(name, key, (key_of(record) or b"").decode())
            if refused is not None:
                self._refuse(name, message, refused)
                return
        try:
            self._on_record(name, record, message.offset, message.timestamp)
        except RecordRefused as error:
            why = str(error)
            self._on_poison(Poison(name, message.partition, message.offset, message.value, why))

    def _refuse(self, name: str, message: Any, why: Refusal) -> None:
        value = message.value or b""
        self._forgeries.tell(Poison(name, message.partition, message.offset, value, why))

    async def _read_last_values(self, consumer: AIOKafkaConsumer) -> None:
        """Decode the last records of each key of compacted topics, and the last 5000 records of
        other topics.

        `status` has a record per node every two seconds, and most are not compacted yet. So it is
        read backwards until the records cover one minute or thirty records per node. If an expected
        node is missing, ten times as much is read.
        """
        parts = self._partitions
        ends = await consumer.end_offsets(parts)
        starts = await consumer.beginning_offsets(parts)
        spans: dict[TopicPartition, tuple[int, int]] = {}
        for part in parts:
            begin = starts[part]
            name = short_name(part.topic, self._prefix)
            if name == STATUS.name:
                begin = max(begin, ends[part] - _FIRST_CHUNK)
            elif self._topics[name].cleanup is Cleanup.DELETE:
                begin = max(begin, ends[part] - _MOST_OF_THE_PAST)
            spans[part] = begin, ends[part]
        found = await self._read_spans(consumer, spans)
        statuses = {p: f for p, f in found.items() if p.topic == STATUS.wire_name(self._prefix)}
        # Read leadership first, because it decides which tokens are valid. Then read services,
        # because they declare models.
        for part in parts:
            if part not in statuses:
                for message in found[part].kept:
                    self._fold(short_name(part.topic, self._prefix), message)
        await self._read_back(consumer, statuses, spans, starts)
        for span in statuses.values():
            for message in span.kept:
                self._fold(STATUS.name, message)
        for part in parts:
            self._next[part] = ends[part]
            consumer.seek(part, ends[part])

    async def _read_back(
        self,
        consumer: AIOKafkaConsumer,
        statuses: dict[TopicPartition, Span],
        spans: Mapping[TopicPartition, tuple[int, int]],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        begins = {part: spans[part][0] for part in statuses}
        chunk = _FIRST_CHUNK
        while True:
            newest_ms = max((span.newest_ms for span in statuses.values()), default=0)
            keys = {m.key or b"" for span in statuses.values() for m in span.kept}
            missing = {node.encode() for node in self._expected()} - keys
            times = _FURTHER if missing else 1
            since_ms, rounds = newest_ms - times * _HEARTBEATS_MS, times * _HEARTBEATS
            more = {
                part: (max(starts[part], begin - chunk), begin)
                for part, begin in begins.items()
                if begin > starts[part] and not statuses[part].reaches(since_ms, rounds)
            }
            if not more:
                return
            for part, earlier in (await self._read_spans(consumer, more)).items():
                statuses[part] = earlier.then(statuses[part])
                begins[part] = more[part][0]
            chunk *= 4

    async def _read_spans(
        self, consumer: AIOKafkaConsumer, spans: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, Span]:
        """Read the offsets [begin, end) of each partition without decoding the records."""
        found: dict[TopicPartition, Span] = {}
        waiting = set()
        consumer.pause(*self._partitions)
        for part, (begin, end) in spans.items():
            topic = self._topics[short_name(part.topic, self._prefix)]
            found[part] = Span(partial(self._kept_as, topic))
            consumer.seek(part, begin)
            if begin < end:
                waiting.add(part)
        consumer.resume(*waiting)
        while waiting:
            batches = await consumer.getmany(*waiting, timeout_ms=200, max_records=_AT_ONCE)
            for part, messages in batches.items():
                end = spans[part][1]
                found[part].add([message for message in messages if message.offset < end])
            for part in list(waiting):
                if await consumer.position(part) >= spans[part][1]:
                    waiting.discard(part)
                    consumer.pause(part)
        consumer.resume(*self._partitions)
        return found

    def _kept_as(self, topic: Topic, message: Any) -> Group:
        """The group of `message`, of which a `Span` keeps the last records: on compacted topics
        its key and whether its signature is valid, because forged records may follow a valid one.
        """
        if topic.cleanup is not Cleanup.COMPACT or message.key is None:
            return message.offset, True
        return message.key, self._verifier.is_signed(
            topic.name, message.key, message.value, message.headers
        )
