"""Telemetry: one record per model and domain second, also when nothing happened; of models without
routes, once they were asked for.

Owns the spans, the sequence, and the buffer for the time that the broker is away: in memory first,
on disk when that lasts (`gateway.spool`), sent when it is back, by a later life too. Ages are taken
when a record is sent, on the monotonic clock, so a late record still names its right second.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from autoscaler.serving.routing import Router
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.gateway_settings import Clock
from executors.gateway.model_meter import Meter
from executors.gateway.telemetry_spool import Spool
from topics.records import Telemetry

SPAN_MS = 1_000
_BATCH = 64
_MOST_KEPT = 10_000
_RETRY_REAL_S = 0.2
_SPOOL_AT = 256  # records; less than that is back before a disk would matter

log = logging.getLogger(__name__)


class Publisher(Protocol):
    """Takes records to the broker."""

    async def publish(self, topic: str, key: str, record: object) -> bool:
        """True once it is there, False when the broker is away; never raises, never blocks long."""
        ...


class Reporter:
    """Reports what the meters saw. Of _MOST_KEPT records kept while the broker is away the oldest
    are dropped and counted (a gap, which readers take for no data and not for zero traffic)."""

    def __init__(
        self,
        gateway: str,
        clock: Clock,
        meters: dict[str, Meter],
        routers: Mapping[str, Router],
        metrics: Metrics,
        publisher: Publisher,
        spool: Spool | None = None,
    ) -> None:
        self.boot = uuid.uuid4().hex
        self._gateway = gateway
        self._clock = clock
        self._meters = meters
        self._routers = routers
        self._metrics = metrics
        self._publisher = publisher
        self._spool = spool
        self._reached = True
        self._pending: deque[Telemetry] = deque()
        self._ready = asyncio.Event()
        self._ready.set()  # a former life may have left something on disk
        self._sequence = 0
        self._last_ms: dict[str, int] = {}

    def span_ended(self, now_ms: int, leaving: bool = False) -> None:
        """Put what every model did since the last time into the buffer.

        leaving: these are the last records; the silence after them is no loss of telemetry.
        """
        for model in {**self._routers, **self._meters}:
            router = self._routers.get(model)
            routes = router.routes if router is not None else None
            if routes is None and model not in self._meters:
                continue  # never asked for here: it may be served elsewhere
            meter = self._meters.setdefault(model, Meter())
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
        while len(self._pending) > _MOST_KEPT:
            self._pending.popleft()
            self._metrics.dropped.inc()
        self._metrics.buffered.set(len(self._pending))
        self._ready.set()

    async def tick(self) -> None:
        """End a span at every full domain second, for ever."""
        base, next_ms = self._clock.base, 0
        while True:
            # Loops wake up a little early at times; no second ends twice.
            next_ms = max(next_ms + SPAN_MS, (self._clock.now_ms() // SPAN_MS + 1) * SPAN_MS)
            due_ns = base.mono_ns_at(next_ms)
            await asyncio.sleep((due_ns - self._clock.mono_ns()) / 1e9)
            late_ms = (self._clock.mono_ns() - due_ns) / 1e6
            self._metrics.lag(late_ms)
            self.span_ended(max(next_ms, self._clock.now_ms()))

    async def send(self) -> None:
        """Send what is buffered and then what is on disk, for ever."""
        while True:
            await self._ready.wait()
            if await self.flush() and await self._unspool():
                continue
            if len(self._pending) >= _SPOOL_AT:
                await self.spool()
            await asyncio.sleep(_RETRY_REAL_S)

    async def flush(self) -> bool:
        """Try to send everything; False if the broker did not take some, which stays in front."""
        while self._pending:
            batch = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
            left = await self._send(batch)
            if left:
                self._pending.extendleft(reversed(left))
                return False
        self._ready.clear()
        return True

    async def spool(self) -> None:
        """Put what is buffered on disk; it stays here if the disk does not take it."""
        if self._spool is None or not self._pending:
            return
        records = list(self._pending)
        self._pending.clear()
        try:
            await asyncio.to_thread(self._spool.keep, records)
        except OSError as error:
            self._pending.extendleft(reversed(records))
            self._metrics.state_errors.inc()
            log.warning("telemetry cannot be kept on disk: %s", error)
        self._count_dropped()

    async def _unspool(self) -> bool:
        """Send what is on disk, the oldest first; False if the broker did not take all of it."""
        while self._spool is not None:
            try:
                found = await asyncio.to_thread(self._spool.oldest)
                self._count_dropped()
                if found is None:
                    return True
                segment, records = found
                for start in range(0, len(records), _BATCH):
                    if await self._send(records[start : start + _BATCH]):
                        self._ready.set()
                        return False
                await asyncio.to_thread(self._spool.sent, segment)
            except OSError as error:
                log.warning("telemetry on disk cannot be read: %s", error)
                return True
        return True

    async def _send(self, records: list[Telemetry]) -> list[Telemetry]:
        """Those of `records` that the broker did not take.

        What failed may wait in the Kafka client and arrive much later, and is then dated by the age
        that it had here. So a broker that is away is tried with one record and not with all.
        """
        if not self._reached and len(records) > 1:
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
        self._reached = all(taken)
        return [record for record, ok in zip(records, taken, strict=True) if not ok]

    def _count_dropped(self) -> None:
        if self._spool is not None and self._spool.dropped:
            self._metrics.dropped.inc(self._spool.dropped)
            self._spool.dropped = 0
