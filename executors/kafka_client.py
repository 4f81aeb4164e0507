"""Kafka client of the serving plane: follow topics from the start, publish records.

`broker_reach` makes the connections. Serving never waits for the broker: while it is away,
`publish` returns False. Following continues once it is back, and some records are then delivered
again. If a new cluster has taken the address, its topics are read from their start. Unreadable
records are only counted; the controller writes a dead letter for each.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Container, Coroutine, Iterable
from types import TracebackType
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaError

from executors.broker_reach import start_client
from topics.broker_clock import BrokerClock
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.edge.kafka_clients import EMBEDDED_CLUSTER, abandon, cluster_of, consumer, producer
from topics.error_text import error_text
from topics.keys import Keys
from topics.leadership import token_of
from topics.macs import Signer, Verifier
from topics.records import Leadership
from topics.signing import BODY_SIGNED_TOPICS
from topics.topic_table import LEADERSHIP, PREFIX, key_of, short_name

log = logging.getLogger(__name__)

OnRecord = Callable[[str, str, Any, int], None]
"""Called as (short topic name, key, record, ms of the broker's clock when it was appended) on the
event loop; it must not block."""

OnTombstone = Callable[[str, str], None]
"""Called as (short topic name, key) for a tombstone: the key is withdrawn."""

_Deliver = Callable[[Any], None]

_RECONNECT_PAUSE_S = 0.5
_SEND_TIMEOUT_S = 2.0
_RENEW_PRODUCER_S = 10.0  # seconds of failed sends after which the TLS files are read again
_MAX_FORGERY_WARNINGS = 20
_LOG_APPEND_TIME = 1  # timestamp type: the broker sets the time
_EARLIEST_REAL_MS = 10**12  # the embedded broker acknowledges with a time in 1970


class KafkaClient:
    """One process's connection to the broker.

            async with KafkaClient("127.0.0.1:9092", "gateway-1") as kafka:
                kafka.follow(("routes",), on_record)
                ok = await kafka.publish("telemetry", "chat", record)

    Entering the context never waits for the broker. bootstrap: "HOST:PORT", optionally after
    "kafka://". keys: keys that sign written records and check read records; without keys every
    record is trusted. gateway: the name with which telemetry is signed. Counters: `published`,
    `refused` (publish returned False), `poison` (unreadable records), `forged` (records without a
    valid signature, which are not delivered). highest_token: the highest token of the leadership
    topic, None until that topic has been read (`follow_leadership`). A record with a higher token
    is not from a leader.
    """

    def __init__(
        self,
        bootstrap: str,
        client_id: str,
        prefix: str = PREFIX,
        keys: Keys | None = None,
        gateway: str = "",
    ) -> None:
        self._bootstrap = bootstrap.removeprefix("kafka://")
        self._client_id = client_id
        self._prefix = prefix
        self._clock = BrokerClock(time.monotonic_ns, lambda: time.time_ns() // 1_000_000)
        self._signer = Signer(keys or Keys(), self._clock.now_ms, gateway)
        # After an outage of the broker, a reader starts again at the earliest record.
        self._verifier = Verifier(keys or Keys(), rereads=True)
        self._producer: AIOKafkaProducer | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._followers: list[asyncio.Event] = []
        self._retry_publish_s = 0.0
        self._failing_since_s: float | None = None
        self._renew_producer = asyncio.Event()
        self.published = 0
        self.refused = 0
        self.poison = 0
        self.forged = 0
        self.highest_token: int | None = None

    async def __aenter__(self) -> KafkaClient:
        self._spawn(self._keep_producer())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(self._producer.stop(), 1.0)

    @property
    def connected(self) -> bool:
        """Whether `publish` may succeed now."""
        return self._producer is not None and time.monotonic() >= self._retry_publish_s

    @property
    def caught_up(self) -> bool:
        """Whether this client has read all records that were in the followed topics when it first
        reached them.

        Before that, a follower may have only an old record of a key.
        """
        return all(event.is_set() for event in self._followers)

    def follow(
        self,
        topics: Iterable[str],
        on_record: OnRecord,
        on_gone: OnTombstone | None = None,
        only: Container[str] | None = None,
        on_caught_up: Callable[[], None] = lambda: None,
        on_new_cluster: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_record` with every record of `topics` (short names), beginning with the
        earliest.

        Reads all partitions without a consumer group. Records of one key arrive in order; some
        arrive twice after a reconnection. Unreadable records are counted. on_gone: called with
        tombstones. only: deliver only records of these keys, and decode no others. on_caught_up:
        called once all records that the topics held have been delivered, also after each loss of
        the broker. on_new_cluster: called before the first record of another cluster, and of
        the first one if it is an embedded broker.
        """

        def deliver(message: Any) -> None:
            key = message.key.decode(errors="replace") if message.key else ""
            if only is None or key in only:
                self._deliver(message, on_record, on_gone)

        self._spawn(
            self._follow(
                tuple(topics), deliver, self._new_follower(), lambda _end: on_caught_up(),
                on_new_cluster,
            )
        )  # fmt: skip

    def follow_leadership(self, on_change: Callable[[], None]) -> None:
        """Keep `highest_token` up to date; calls `on_change` whenever it has changed.

        If retention has removed every claim, the end offset of the topic is used, which no token
        exceeds.
        """
        claimed = 0

        def set_token(token: int) -> None:
            if token != self.highest_token:
                self.highest_token = token
                on_change()

        def deliver(message: Any) -> None:
            def on_record(_topic: str, _key: str, record: object, _append_ms: int) -> None:
                nonlocal claimed
                if isinstance(record, Leadership) and (token := token_of(record, message.offset)):
                    claimed = max(claimed, token)
                    if self.highest_token is not None:
                        set_token(claimed)

            self._deliver(message, on_record, None)

        def at_end(end: int) -> None:
            set_token(claimed or end)

        def forget() -> None:
            nonlocal claimed
            claimed, self.highest_token = 0, None

        followed = self._follow((LEADERSHIP.name,), deliver, self._new_follower(), at_end, forget)
        self._spawn(followed)

    def _new_follower(self) -> asyncio.Event:
        caught_up = asyncio.Event()
        self._followers.append(caught_up)
        return caught_up

    async def publish(self, topic: str, key: str, record: object) -> bool:
        """Publish `record`. Returns True once the broker has the record, False if the broker is
        away (after 2 s at most).

        A record may still arrive after False, so readers must tolerate duplicates.
        """
        if not self.connected or self._producer is None:
            self.refused += 1
            return False
        try:
            async with asyncio.timeout(_SEND_TIMEOUT_S):
                await self._send(topic, key.encode() if key else None, encode(record))
        except (KafkaError, TimeoutError) as error:
            # Let the next records fail at once instead of waiting for the timeout again.
            now_s = time.monotonic()
            self._retry_publish_s = now_s + 1.0
            self._failing_since_s = self._failing_since_s or now_s
            if now_s - self._failing_since_s >= _RENEW_PRODUCER_S:
                self._renew_producer.set()
            self.refused += 1
            log.warning("cannot publish to %s: %s", topic, error_text(error))
            return False
        self.published += 1
        self._failing_since_s = None
        return True

    async def _send(self, topic: str, key: bytes | None, value: bytes) -> None:
        assert self._producer is not None  # noqa: S101  `publish` looked
        headers = self._signer.headers(topic, key, value)
        sent_ns = time.monotonic_ns()
        taken = await self._producer.send_and_wait(
            self._prefix + topic, value, key=key, headers=headers
        )
        if taken.timestamp_type == _LOG_APPEND_TIME and taken.timestamp > _EARLIEST_REAL_MS:
            self._clock.add_sample(taken.timestamp, sent_ns)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _keep_producer(self) -> None:
        while True:
            self._producer = await start_client(self._bootstrap, self._new_producer)
            self._failing_since_s = None
            self._renew_producer.clear()
            await self._renew_producer.wait()
            former, self._producer = self._producer, None
            await asyncio.gather(abandon(former), return_exceptions=True)

    def _new_producer(self) -> AIOKafkaProducer:
        return producer(
            self._bootstrap,
            self._client_id,
            enable_idempotence=True,
            linger_ms=5,
            request_timeout_ms=5000,
            metadata_max_age_ms=10_000,
        )

    async def _follow(
        self,
        topics: tuple[str, ...],
        deliver: _Deliver,
        caught_up: asyncio.Event,
        at_end: Callable[[int], None],
        on_new_cluster: Callable[[], None],
    ) -> None:
        known = ""
        while True:
            reader = await start_client(self._bootstrap, lambda: self._new_consumer(topics))
            found = cluster_of(reader)
            # What this process has saved may come from an earlier embedded broker.
            if found != known and (known or found.startswith(EMBEDDED_CLUSTER)):
                log.info("a new cluster answers at %s", self._bootstrap)
                on_new_cluster()
            known = found
            try:
                await self._read(reader, deliver, caught_up, at_end)
                continue
            except (KafkaError, OSError) as error:
                log.warning("lost the broker at %s: %s", self._bootstrap, error_text(error))
            finally:
                # aiokafka may raise the cancellation of its own tasks.
                await asyncio.gather(reader.stop(), return_exceptions=True)
            await asyncio.sleep(_RECONNECT_PAUSE_S)

    def _new_consumer(self, topics: tuple[str, ...]) -> AIOKafkaConsumer:
        return consumer(
            self._bootstrap,
            self._client_id,
            (self._prefix + topic for topic in topics),
            # Skip records of aborted transactions.
            isolation_level="read_committed",
            group_id=None,
            # Short, because the embedded broker answers a fetch only after this time, even if a
            # record arrives earlier, so it adds to the delay from publisher to reader.
            fetch_max_wait_ms=50,
            request_timeout_ms=5000,
            metadata_max_age_ms=10_000,
        )

    async def _read(
        self,
        consumer: AIOKafkaConsumer,
        deliver: _Deliver,
        caught_up: asyncio.Event,
        at_end: Callable[[int], None],
    ) -> None:
        """Deliver the records of the present cluster; returns when another one answers."""
        cluster, reached = cluster_of(consumer), False
        ends: dict[Any, int] | None = None
        while cluster_of(consumer) == cluster:
            batch = await consumer.getmany(timeout_ms=200, max_records=2000)
            for messages in batch.values():
                for message in messages:
                    deliver(message)
            if reached:
                continue
            if ends is None and consumer.assignment():
                ends = await consumer.end_offsets(consumer.assignment())
            if ends is not None:
                positions = [await consumer.position(part) >= end for part, end in ends.items()]
                if reached := all(positions):
                    at_end(max(ends.values()))
                    caught_up.set()

    def _deliver(self, message: Any, on_record: OnRecord, on_gone: OnTombstone | None) -> None:
        topic = short_name(message.topic, self._prefix)
        forged = self._verifier.refusal(
            topic, message.key, message.value, message.headers, message.timestamp
        )
        if forged is not None:
            self._refuse(topic, message.offset, forged)
            return
        if message.value is None:
            if on_gone is not None and message.key:
                on_gone(topic, message.key.decode(errors="replace"))
            return
        try:
            record = decode(topic, message.value)
            key = message.key.decode() if message.key else ""
        except (InvalidValue, UnicodeDecodeError) as error:
            self.poison += 1
            log.warning("%s: unreadable record at offset %d: %s", topic, message.offset, error)
            return
        # in all others, a signature inside the record names its owner
        if topic not in BODY_SIGNED_TOPICS:
            owner = (key_of(record) or b"").decode()
            forged = self._verifier.check_owner(topic, key, owner)
            if forged is not None:
                self._refuse(topic, message.offset, forged)
                return
            self._signer.on_record(topic, message.key, message.headers)
        try:
            on_record(topic, key, record, message.timestamp)
        except Exception:
            log.exception("%s: cannot handle the record at offset %d", topic, message.offset)

    def _refuse(self, topic: str, offset: int, why: str) -> None:
        self.forged += 1
        level = logging.WARNING if self.forged < _MAX_FORGERY_WARNINGS else logging.DEBUG
        log.log(level, "%s: refused the record at offset %d: %s", topic, offset, why)
