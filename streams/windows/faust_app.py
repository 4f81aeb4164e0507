"""Window worker as a Faust application: an agent on `telemetry` writes merged records to `demand`.

Kafka distributes the partitions over all workers of the group. The records of a micro-batch are
acknowledged only after the broker has their merged records, so the successor of a killed worker
reads unmerged records again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import faust
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.ports.micro_batches import MicroBatch, PartitionMerger
from topics.codec import encode
from topics.demand import Demand
from topics.edge.kafka_clients import options, security
from topics.error_text import error_text
from topics.keys import Keys
from topics.macs import Signer, Verifier
from topics.time_base import TimeBase
from topics.topic_table import DEMAND, TELEMETRY

log = logging.getLogger(__name__)

_LOOK_DOMAIN_S = 0.1
_LEAST_LOOK_S = 0.01
_ANSWER_S = 1.0
_HUNG_S = 30.0
_NO_KEYS = Keys()
_TOLD = 1000


Ends = Callable[[Iterable[int]], Awaitable[Mapping[int, int]]]


@dataclass(slots=True)
class _Partition:
    """Merger of one partition, events of its open micro-batch, and a lock that keeps its
    micro-batches in order."""

    merger: PartitionMerger
    events: list[Any] = field(default_factory=list)
    order: asyncio.Lock = field(default_factory=asyncio.Lock)


class Worker:
    """Merges the partitions of this worker.

    demand: topic for the merged records. ends: queries the broker for the end offsets of
    partitions. keys: verify telemetry and sign merged records.
    """

    def __init__(
        self,
        demand: Any,
        ends: Ends,
        time_base: TimeBase = TimeBase(),  # noqa: B008  a frozen value
        monotonic_s: Callable[[], float] = time.monotonic,
        keys: Keys = _NO_KEYS,
    ) -> None:
        self._verifier = Verifier(keys)
        self._told = 0
        # Append time of the newest records by the broker's clock. Merged records get this time.
        self._appended_ms = 0
        self._signer = Signer(keys, lambda: self._appended_ms)
        self._demand = demand
        self._ends = ends
        self._time_base = time_base
        self._monotonic_s = monotonic_s
        self._partitions: dict[int, _Partition] = {}

    async def take(self, event: Any) -> None:
        """Add a record, and write the micro-batch that it ended."""
        message = event.message
        of = self._partitions.get(message.partition) or self._add(message.partition)
        append_ms = round(message.timestamp * 1000)
        ended = of.merger.take(
            message.offset, append_ms, message.value or b"", _pairs(message.headers)
        )
        events = of.events
        if ended is not None:
            of.events = [event]
            await self._write(of, ended, events)
        else:
            events.append(event)

    async def close_idle(self) -> None:
        """Write micro-batches without a new record for a while, if the broker has no unread record.

        The broker is queried because this worker itself may have been suspended.
        """
        idle = {number: of for number, of in self._partitions.items() if of.merger.is_idle()}
        if not idle:
            return
        try:
            async with asyncio.timeout(_ANSWER_S):
                ends = await self._ends(idle)
        except (KafkaError, TimeoutError) as error:
            why = error_text(error)
            log.warning("windows: the ends of partitions are not known: %s", why)
            return
        for number, of in idle.items():
            ended = of.merger.end(ends[number])
            if ended is not None and self._partitions.get(number) is of:
                events, of.events = of.events, []
                await self._write(of, ended, events)

    def forget(self, partitions: set[int]) -> None:
        """Drop the open micro-batches of revoked partitions. Their new workers read the
        unacknowledged records again.
        """
        for partition in partitions:
            self._partitions.pop(partition, None)

    def _add(self, partition: int) -> _Partition:
        def on_invalid(offset: int, _value: bytes, why: str, _refused: bool) -> None:
            self._told += 1
            level = logging.WARNING if self._told < _TOLD else logging.DEBUG
            log.log(level, "telemetry %d at %d: %s", partition, offset, why)

        merger = PartitionMerger(
            partition, self._time_base, self._verifier, on_invalid, self._monotonic_s
        )
        of = self._partitions[partition] = _Partition(merger)
        return of

    async def _write(self, of: _Partition, batch: MicroBatch, events: Sequence[Any]) -> None:
        """Write the merged records of `batch`, and acknowledge its `events`."""
        async with of.order:
            self._appended_ms = max(self._appended_ms, batch.append_ms[-1])
            sent = [await self._send(record) for record in of.merger.merge(batch)]
            for delivery in sent:
                await delivery
            for event in events:
                event.ack()

    async def _send(self, record: Demand) -> Any:
        key, value = record.model.encode(), encode(record)
        headers = self._signer.headers(DEMAND.name, key, value)
        return await self._demand.send(key=key, value=value, headers=headers)


def _pairs(headers: Any) -> Any:
    """Headers of a Faust record, as pairs."""
    return tuple(headers.items()) if isinstance(headers, Mapping) else tuple(headers or ())


def make_app(
    bootstrap: str,
    prefix: str,
    keys: Keys = _NO_KEYS,
    time_base: TimeBase = TimeBase(),  # noqa: B008  a frozen value
) -> faust.App:
    """The Faust application; run it with `faust.Worker`. The topics must exist."""
    app = faust.App(
        f"{prefix}windows",
        broker=[f"kafka://{server}" for server in bootstrap.split(",")],
        broker_credentials=_credentials(),
        store="memory://",
        autodiscover=False,
        web_enabled=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        consumer_auto_offset_reset="latest",
        broker_session_timeout=6.0,
        broker_heartbeat_interval=1.0,
        broker_commit_interval=0.5,
        stream_wait_empty=False,
        producer_acks=-1,
    )
    raw = {
        "key_type": bytes, "value_type": bytes, "key_serializer": "raw", "value_serializer": "raw",
    }  # fmt: skip
    telemetry = app.topic(TELEMETRY.wire_name(prefix), **raw)

    async def ends(partitions: Iterable[int]) -> Mapping[int, int]:
        name = TELEMETRY.wire_name(prefix)
        found = await app.consumer.highwaters(*(TP(name, number) for number in partitions))
        return {place.partition: end for place, end in found.items()}

    worker = Worker(app.topic(DEMAND.wire_name(prefix), **raw), ends, time_base, keys=keys)

    async def merge(stream: Any) -> None:
        async for event in stream.noack().events():
            await worker.take(event)

    app.agent(telemetry, name="merge")(merge)

    async def write_idle() -> None:
        while not app.should_stop:
            await asyncio.sleep(max(_LEAST_LOOK_S, _LOOK_DOMAIN_S / time_base.speed))
            await worker.close_idle()

    async def watch_loop() -> None:
        # Kafka notices a worker that is gone, but not one whose event loop hangs.
        while not app.should_stop:
            faulthandler.dump_traceback_later(_HUNG_S, exit=True)
            await asyncio.sleep(1.0)

    app.task(write_idle)
    app.task(watch_loop)

    async def revoked(_app: faust.App, revoked: set[TP], **_more: Any) -> None:
        worker.forget({place.partition for place in revoked})

    app.on_partitions_revoked.connect(revoked, weak=False)
    return app


def _credentials() -> Any:
    """TLS and SASL settings of this process for Faust; None for plaintext."""
    settings = security()
    found = options(settings)
    context = found.get("ssl_context")
    if settings.sasl:
        return faust.SASLCredentials(
            username=found["sasl_plain_username"],
            password=found["sasl_plain_password"],
            mechanism=settings.mechanism,
            ssl_context=context,
        )
    return faust.SSLCredentials(context=context) if settings.tls else None
