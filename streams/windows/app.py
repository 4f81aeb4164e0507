"""The workers as a Faust application: an agent on `telemetry`, whose partitions Kafka spreads over
all workers of the group; what it merges goes to `demand`.

Owns when a second is closed and when its records are acknowledged: only once what was merged is
with the broker, so a worker that is killed leaves everything that is not to the next one.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import faust
from faust.types import TP

from streams.broker.clients import options, security
from streams.windows.merge import Batch
from topics.checks import InvalidRecord
from topics.codec import encode
from topics.reported import read_reported
from topics.table import DEMAND, TELEMETRY

log = logging.getLogger(__name__)

_IDLE_S = 1.5
_LOOK_S = 0.25


class Worker:
    """Batches of the partitions that this worker has now. poison: records not understood."""

    def __init__(self, demand: Any) -> None:
        self._demand = demand
        self._batches: dict[int, tuple[Batch, list[Any]]] = {}
        self.poison = 0

    async def take(self, event: Any) -> None:
        """A record; the first of a later second closes the one before."""
        message = event.message
        append_ms = int(message.timestamp * 1000)
        second = append_ms // 1000
        known = self._batches.get(message.partition)
        if known is not None and known[0].appended_s < second:
            await self._close(message.partition)
            known = None
        if known is None:
            known = self._batches[message.partition] = Batch(message.partition, second), []
        batch, events = known
        events.append(event)
        try:
            batch.add(read_reported(message.value), append_ms, time.monotonic())
        except InvalidRecord as error:
            self.poison += 1
            log.warning("telemetry %d at %d: %s", message.partition, message.offset, error)

    async def close_idle(self) -> None:
        """Close seconds after which nothing came."""
        since_s = time.monotonic() - _IDLE_S
        for partition, (batch, _) in list(self._batches.items()):
            if batch.last_s < since_s:
                await self._close(partition)

    def forget(self, partitions: set[int]) -> None:
        """These go to other workers, who read again what is not acknowledged."""
        for partition in partitions:
            self._batches.pop(partition, None)

    async def _close(self, partition: int) -> None:
        batch, events = self._batches.pop(partition)
        sent = [
            await self._demand.send(key=record.model.encode(), value=encode(record))
            for record in batch.merged()
        ]
        for delivery in sent:
            await delivery
        for event in events:
            event.ack()


def make_app(bootstrap: str, prefix: str) -> faust.App:
    """The application; run it with `faust.Worker`. Topics must exist."""
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
    worker = Worker(app.topic(DEMAND.wire_name(prefix), **raw))

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
    """The settings of this process as Faust takes them; None for plaintext."""
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
