"""Demand from window workers, on a real Kafka.

While the workers are late or absent, this controller merges the telemetry itself. Its records equal
theirs, so nothing is lost or counted twice when they return.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping

from aiokafka.errors import KafkaError

from streams.broker.consumer_lag import ConsumerLag
from streams.ports.demand_source import Sink
from streams.ports.demand_topic import DemandTopic
from streams.ports.merging import Merger, Merging
from streams.ports.telemetry_ends import TelemetryEnds
from streams.ports.telemetry_topic import TelemetryTopic
from topics.error_text import error_text

log = logging.getLogger(__name__)

_EVERY_S = 0.5
_LATE_DOMAIN_S = 3.0
_LEAST_LATE_S = 1.0
STEADY_S = 10.0
"""Real seconds without a delay after which late workers count as back."""


class WorkerDemand:
    """A `DemandSource`. own: makes a reader that merges the telemetry from these offsets on, by
    partition, into the windows of `demand`. ends: queries the end offsets of `telemetry`."""

    def __init__(
        self,
        demand: DemandTopic,
        own: Callable[[Mapping[int, int]], TelemetryTopic],
        ends: TelemetryEnds,
        monotonic_s: Callable[[], float] = time.monotonic,
        steady_s: float = STEADY_S,
    ) -> None:
        self._demand = demand
        self._make_own = own
        self._ends = ends
        self._monotonic_s = monotonic_s
        self._steady_s = steady_s
        self._limit_s = max(_LEAST_LATE_S, _LATE_DOMAIN_S / demand.clock.time_base.speed)
        self._own: TelemetryTopic | None = None
        self._following_own: asyncio.Task[None] | None = None
        self._in_time_s = monotonic_s()
        self._steady_from_s = float("-inf")
        self._merger = Merger.CONTROLLER

    @property
    def lags(self) -> tuple[ConsumerLag, ...]:
        """Lag of each topic that is read."""
        return (*self._demand.lags, *(self._own.lags if self._own is not None else ()))

    def merging(self) -> Merging:
        """Return the present merger of the telemetry."""
        is_late = self._merger is Merger.WORKERS_LATE
        return Merging(self._merger, self._monotonic_s() - self._in_time_s if is_late else 0.0)

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Apply changed partition counts."""
        self._demand.repartition(partitions)
        self._ends.repartition(partitions)
        if self._own is not None:
            self._own.repartition(partitions)

    async def replay(self, sink: Sink) -> None:
        """Read what workers merged of the past, and merge the rest."""
        await self._demand.replay(sink)
        self._own = self._new_own()
        await self._own.replay(sink)

    async def live(self) -> None:
        """See `DemandSource.live`."""
        await self._demand.live()

    async def follow(self, sink: Sink) -> None:
        """Read until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._demand.follow(sink))
            self._merge_too(tasks, sink)
            before = await self._reachable_ends()
            while True:
                await asyncio.sleep(_EVERY_S)
                ends = await self._reachable_ends()
                new = {n: end for n, end in ends.items() if end > before.get(n, 0)}
                known, before = bool(before), ends or before
                if not (known and new) or self._demand.behind.late_s():
                    continue  # nothing to merge, or this controller itself is late
                if await self._merged_in_time(new):
                    self._note_in_time(ends)
                else:
                    self._note_late(tasks, sink)

    def _new_own(self) -> TelemetryTopic:
        merged = self._demand.merged
        starts = {number: merged.start(number) for number in merged.counted}
        return self._make_own({n: at for n, at in starts.items() if at is not None})

    def _merge_too(self, tasks: asyncio.TaskGroup, sink: Sink) -> None:
        """Merge the telemetry too. Records that workers merged as well count once."""
        if self._following_own is not None:
            return
        self._own = self._own or self._new_own()
        self._following_own = tasks.create_task(self._own.follow(sink))

    def _leave_to_workers(self, own: TelemetryTopic, ends: Mapping[int, int]) -> None:
        """Stop merging, unless `own` has not merged up to `ends`, or the workers are ahead: then a
        record of theirs did not count."""
        counted = self._demand.merged.counted
        is_ahead = any(counted.get(n, 0) < end for n, end in self._demand.written.items())
        if is_ahead or not own.has_merged(ends):
            return
        if self._following_own is not None:
            self._following_own.cancel()
        self._own = self._following_own = None
        if self._merger is Merger.WORKERS_LATE:
            log.warning("window workers are in time again: reading what they merge")
        self._merger = Merger.WORKERS

    def _note_in_time(self, ends: Mapping[int, int]) -> None:
        self._in_time_s = self._monotonic_s()
        if self._own is not None and self._in_time_s >= self._steady_from_s:
            self._leave_to_workers(self._own, ends)

    def _note_late(self, tasks: asyncio.TaskGroup, sink: Sink) -> None:
        if self._merger is not Merger.WORKERS_LATE:
            log.warning("window workers are late or absent: this controller merges the telemetry")
        self._merger = Merger.WORKERS_LATE
        self._steady_from_s = self._monotonic_s() + self._steady_s
        self._merge_too(tasks, sink)

    async def _merged_in_time(self, new: Mapping[int, int]) -> bool:
        """Whether the workers merge the records before the offsets `new` within the limit. While
        this controller merges nothing, the records must count too."""
        merged = self._demand.written if self._own is not None else self._demand.merged.counted
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._limit_s):
                while any(merged.get(number, 0) < end for number, end in new.items()):
                    self._demand.news.clear()
                    await self._demand.news.wait()
                return True
        return False

    async def _reachable_ends(self) -> Mapping[int, int]:
        """The end offsets of `telemetry`; empty while the broker is unreachable."""
        try:
            return await self._ends.query()
        except (KafkaError, OSError) as error:
            log.warning("ends of telemetry: %s", error_text(error))
            return {}
