"""Reports telemetry: one record per model and domain second, even without traffic.

Models without routes are reported after their first request. While the broker is away, records are
buffered in memory and then on disk (`gateway.telemetry_spool`). They are sent when the broker is
back, if necessary by a restarted gateway. The age of a record is computed from the monotonic clock
when it is sent, so that readers find the second that a late record describes.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Container, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from autoscaler.serving.request_router import Router
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock
from executors.gateway.model_meter import ModelMeter
from executors.gateway.telemetry_spool import TelemetrySpool
from topics.records import Telemetry

SPAN_MS = 1_000
_BATCH = 64
_MAX_BUFFERED = 10_000
_RETRY_REAL_S = 0.2
_SPOOL_THRESHOLD = 256  # number of buffered records from which the disk is used

log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Publishes records to the broker."""

    async def publish(self, topic: str, key: str, record: object) -> bool:
        """Publish a record. Returns True if the broker has it, False if the broker is away. Never
        raises, and returns within seconds."""
        ...


class TelemetryReporter:
    """Reports the counts of the meters. At most `_MAX_BUFFERED` records are kept in memory; the
    oldest are dropped and counted. Readers take the gap as missing data, not as zero traffic."""

    def __init__(
        self,
        gateway: str,
        clock: Clock,
        meters: dict[str, ModelMeter],
        routers: Mapping[str, Router],
        metrics: GatewayMetrics,
        publisher: Publisher,
        spool: TelemetrySpool | None = None,
        declared: Container[str] = (),
    ) -> None:
        self._declared = declared
        self.boot = uuid.uuid4().hex
        self._gateway = gateway
        self._clock = clock
        self._meters = meters
        self._routers = routers
        self._metrics = metrics
        self._publisher = publisher
        self._spool = spool
        self._broker_reached = True
        # The segment on disk of which records were sent, and their number.
        self._unspooling: Path | None = None
        self._unspooled = 0
        self._pending: deque[Telemetry] = deque()
        self._ready = asyncio.Event()
        self._ready.set()  # check the disk first for records of an earlier process
        self._sequence = 0
        self._last_ms: dict[str, int] = {}

    def end_span(self, now_ms: int, leaving: bool = False) -> None:
        """Buffer one record per model, with the counts since the model's last record.

        leaving: whether these are the gateway's last records, so that readers expect no more.
        """
        for model in {**self._routers, **self._meters}:
            router = self._routers.get(model)
            routes = router.routes if router is not None else None
            if routes is None and model not in self._meters:
                continue  # skip models for which this gateway has neither routes nor requests
            meter = self._meters.setdefault(model, ModelMeter())
            started = self._last_ms.get(model, now_ms - SPAN_MS)
            self._last_ms[model] = now_ms
            self._sequence += 1
            self._pending.append(
                meter.report(
                    model=model,
                    gateway=self._gateway,
                    boot=self.boot,
                    sequence=self._sequence,
                    end_ms=now_ms,
                    span_ms=max(0, now_ms - started),
                    route_generation=routes.generation if routes is not None else 0,
                    leaving=leaving,
                )
            )
            if routes is not None:
                self._metrics.keep_adapters(model, routes.adapters)
            gone = model not in self._routers and model not in self._declared
            if gone and not meter.in_flight:
                del self._meters[model], self._last_ms[model]
                self._metrics.forget(model)
        while len(self._pending) > _MAX_BUFFERED:
            self._pending.popleft()
            self._metrics.telemetry_dropped.inc()
        self._metrics.telemetry_buffered.set(len(self._pending))
        self._ready.set()

    def begin_cluster(self) -> None:
        """Confirm no routes with buffered records: generations of a new cluster begin again."""
        for _ in range(len(self._pending)):
            record = self._pending.popleft()
            record = replace(record, route_generation=0) if record.route_generation else record
            self._pending.append(record)

    async def tick(self) -> None:
        """End a span at every full domain second. Never returns."""
        base, next_ms = self._clock.base, 0
        while True:
            # An event loop may wake up slightly early; no second may end twice.
            next_ms = max(next_ms + SPAN_MS, (self._clock.now_ms() // SPAN_MS + 1) * SPAN_MS)
            due_ns = base.mono_ns_at(next_ms)
            await asyncio.sleep((due_ns - self._clock.mono_ns()) / 1e9)
            late_ms = (self._clock.mono_ns() - due_ns) / 1e6
            self._metrics.observe_loop_lag(late_ms)
            self.end_span(max(next_ms, self._clock.now_ms()))

    async def send(self) -> None:
        """Send buffered records, then those on disk. Never returns."""
        while True:
            await self._ready.wait()
            if await self.flush() and await self._unspool():
                continue
            if len(self._pending) >= _SPOOL_THRESHOLD:
                await self.spool()
            await asyncio.sleep(_RETRY_REAL_S)

    async def flush(self) -> bool:
        """Send all buffered records. Returns False if the broker did not accept some; these stay
        first in the buffer."""
        if not self._broker_reached:
            self.begin_cluster()
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            unsent = await self._send(batch)
            if unsent:
                self._pending.extendleft(reversed(unsent))
                return False
        self._ready.clear()
        return True

    async def spool(self) -> None:
        """Move the buffer to disk. The records stay in memory if they cannot be written."""
        if self._spool is None or not self._pending:
            return
        records = list(self._pending)
        self._pending.clear()
        try:
            await asyncio.to_thread(self._spool.append, records)
        except OSError as error:
            self._pending.extendleft(reversed(records))
            self._metrics.state_errors.inc()
            log.warning("cannot write telemetry to disk: %s", error)
        self._count_dropped()

    async def _unspool(self) -> bool:
        """Send the records on disk, oldest first, from where the last call ended. Returns False if
        the broker did not accept some."""
        while self._spool is not None:
            try:
                stored = await asyncio.to_thread(self._spool.oldest)
                self._count_dropped()
                if stored is None:
                    return True
                segment, records = stored
                if self._unspooling != segment:
                    self._unspooling, self._unspooled = segment, 0
                for start in range(self._unspooled, len(records), _BATCH):
                    if await self._send(records[start : start + _BATCH]):
                        self._ready.set()
                        return False
                    self._unspooled = min(start + _BATCH, len(records))
                self._unspooling = None  # a later segment may have the same name
                await asyncio.to_thread(self._spool.remove, segment)
            except OSError as error:
                log.warning("cannot read telemetry from disk: %s", error)
                return True
        return True

    async def _send(self, records: list[Telemetry]) -> list[Telemetry]:
        """Send `records` and return those that the broker did not accept.

        While the broker is away, it tries only one record at a time, because the Kafka client may
        deliver a failed record much later, with an age that is then wrong.
        """
        if not self._broker_reached and len(records) > 1:
            return records if await self._send(records[:1]) else await self._send(records[1:])
        now_ms = self._clock.now_ms()
        taken = await asyncio.gather(
            *(
                self._publisher.publish(
                    "telemetry",
                    record.model,
                    replace(record, age_ms=max(0, now_ms - record.end_ms)),
                )
                for record in records
            )
        )
        self._broker_reached = all(taken)
        return [record for record, ok in zip(records, taken, strict=True) if not ok]

    def _count_dropped(self) -> None:
        if self._spool is not None and self._spool.dropped:
            self._metrics.telemetry_dropped.inc(self._spool.dropped)
            self._spool.dropped = 0
