"""Window worker as a Faust application: an agent on `telemetry` writes merged records to `demand`.

Kafka distributes the partitions over all workers of the group. The records of a second are
acknowledged only after the broker has their merged record, so the successor of a killed worker
reads unmerged records again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import faust
import numpy as np
from aiokafka.errors import KafkaError
from faust.types import TP

from streams.broker.kafka_clients import options, security
from streams.ports.telemetry_signed import read_signed
from streams.windows.telemetry_merge import merged
from topics.codec import encode
from topics.demand import Demand
from topics.error_text import error_text
from topics.keys import Keys
from topics.macs import Signer, Verifier
from topics.topic_table import DEMAND, TELEMETRY

log = logging.getLogger(__name__)

_IDLE_S = 1.5
_LOOK_S = 0.25
_ANSWER_S = 1.0
_TOLD = 1000
_NO_KEYS = Keys()


Ends = Callable[[Iterable[int]], Awaitable[Mapping[int, int]]]


@dataclass(slots=True)
class _Second:
    """Records of one partition in the second `appended_s`. last_s: monotonic time in s at which the
    last record arrived."""

    appended_s: int
    last_s: float = 0.0
    events: list[Any] = field(default_factory=list)


class Worker:
    """Open seconds of the partitions of this worker.

    ends: queries the broker for the end offsets of partitions. keys: verify telemetry and sign
    merged records.
    """

    def __init__(
        self,
        demand: Any,
        ends: Ends,
        monotonic_s: Callable[[], float] = time.monotonic,
        keys: Keys = _NO_KEYS,
    ) -> None:
        self._verifier = Verifier(keys)
        self._told = 0
        # Append time of the current records by the broker's clock. Merged records get this time.
        self._appended_ms = 0
        self._signer = Signer(keys, lambda: self._appended_ms)
        self._demand = demand
        self._ends = ends
        self._monotonic_s = monotonic_s
        self._open: dict[int, _Second] = {}

    async def take(self, event: Any) -> None:
        """Add a record. The first record of a later second closes the open
        second of its partition.
        """
        message = event.message
        appended_s = _append_ms(event) // 1000
        known = self._open.get(message.partition)
        if known is not None and known.appended_s < appended_s:
            await self._close(message.partition)
            known = None
        if known is None:
            known = self._open[message.partition] = _Second(appended_s)
        known.events.append(event)
        known.last_s = self._monotonic_s()

    async def close_idle(self) -> None:
        """Close seconds without a new record for a while, if the broker has no unread record.

        The broker is queried because this worker itself may have been suspended. If a second is
        merged twice, readers count it once.
        """
        idle = {partition for partition in self._open if self._is_idle(partition)}
        if not idle:
            return
        try:
            async with asyncio.timeout(_ANSWER_S):
                ends = await self._ends(idle)
        except (KafkaError, TimeoutError) as error:
            why = error_text(error)
            log.warning("windows: the ends of partitions are not known: %s", why)
            return
        for partition in idle:
            if self._is_idle(partition):
                last = self._open[partition].events[-1].message.offset
                if last + 1 >= ends[partition]:
                    await self._close(partition)

    def _is_idle(self, partition: int) -> bool:
        """Whether `partition` has an open second that received no record for a while."""
        second = self._open.get(partition)
        return second is not None and self._monotonic_s() - second.last_s > _IDLE_S

    def forget(self, partitions: set[int]) -> None:
        """Drop the open seconds of revoked partitions. Their new workers read the unacknowledged
        records again.
        """
        for partition in partitions:
            self._open.pop(partition, None)

    async def _close(self, partition: int) -> None:
        second = self._open.pop(partition)
        events = second.events
        values = [event.message.value or b"" for event in events]
        headers = [_pairs(event.message.headers) for event in events]
        appended_ms = [_append_ms(event) for event in events]
        found = read_signed(values, headers, appended_ms, self._verifier)
        for at, why in {**found.bad, **found.refused}.items():
            self._told += 1
            level = logging.WARNING if self._told < _TOLD else logging.DEBUG
            log.log(level, "telemetry %d at %d: %s", partition, events[at].message.offset, why)
        if found.places is not None:
            appended_ms = [appended_ms[at] for at in found.places]
        times_ms = np.array(appended_ms, np.int64)
        self._appended_ms = max(self._appended_ms, second.appended_s * 1000)
        sent = [
            await self._send(record)
            for record in merged(partition, second.appended_s, found.records, times_ms)
        ]
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


def _append_ms(event: Any) -> int:
    return int(event.message.timestamp * 1000)


def make_app(bootstrap: str, prefix: str, keys: Keys = _NO_KEYS) -> faust.App:
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

    worker = Worker(app.topic(DEMAND.wire_name(prefix), **raw), ends, keys=keys)

    async def merge(stream: Any) -> None:
        async for event in stream.noack().events():
            await worker.take(event)

    app.agent(telemetry, name="merge")(merge)
    app.timer(_LOOK_S)(worker.close_idle)

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
