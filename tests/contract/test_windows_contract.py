"""Window workers on a real Kafka share partitions and may be killed. The controller merges the
telemetry itself while they are late, and on the embedded broker. No request counts twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from autoscaler.estimate.windows import Stats, TelemetryWindows
from streams.broker.topic_admin import ensure_topics
from streams.clock import Clock, Times
from streams.controller.demand_sources import gateways_sink
from streams.ports.demand_source import Sink
from streams.ports.demand_topic import DemandTopic
from streams.ports.merged_records import MergedRecords
from streams.ports.merging import Merger
from streams.ports.micro_batches import PartitionMerger
from streams.ports.telemetry_ends import TelemetryEnds
from streams.ports.telemetry_topic import TelemetryTopic
from streams.ports.worker_demand import WorkerDemand
from tests.contract.brokers import Broker, read_raw
from tests.hang_limit import HANG_S
from topics.codec import encode
from topics.demand import Demand
from topics.keys import Keys
from topics.macs import Verifier
from topics.telemetry import Telemetry
from topics.telemetry_columns import TelemetryBatch
from topics.time_base import TimeBase
from topics.topic_table import TABLE, TELEMETRY

MODELS = [f"model-{k}" for k in range(12)]
ARRIVALS = 7
HORIZON_S = 86_400


class Recorder(MergedRecords):
    """Keeps every merged record that is read."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.read: dict[tuple[str, int, int], Demand] = {}

    def take(self, records: Iterable[Demand], sink: Sink) -> None:
        came = list(records)
        for one in came:
            known = self.read.setdefault((one.model, one.partition, one.last_offset), one)
            assert known == one, "a record that comes again is equal"
        super().take(came, sink)


class Fleet:
    """Gateways that write telemetry under a prefix of their own, and windows that count it."""

    def __init__(self, broker: Broker, producer: AIOKafkaProducer, speed: float) -> None:
        self.broker = broker
        self.base = TimeBase(speed, int(time.time() * 1000), time.monotonic_ns())
        self.clock = Clock(self.base)
        self.merged = Recorder(self.clock)
        self.windows = TelemetryWindows(HORIZON_S)
        count = gateways_sink(self.windows, {}, lambda: None)

        def sink(records: TelemetryBatch, ends_ms: Times) -> None:
            self.windows.advance(self.clock.now_ms())  # as ticks do
            count(records, ends_ms)

        self.sink = sink
        self.workers: list[asyncio.subprocess.Process] = []
        self.sent = 0
        self._producer = producer
        self._beat = 0

    def reader(self, kind: Any, starts: Any = None, merged: MergedRecords | None = None) -> Any:
        return kind(
            self.broker.bootstrap, self.broker.prefix, self.clock, print, {}, HORIZON_S,
            self.broker.kind == "embedded", merged=merged or self.merged, starts=starts,
        )  # fmt: skip

    async def beat(self, sent_twice: bool = False) -> None:
        """Two gateways report one second of every model."""
        self._beat += 1
        for gateway in ("a", "b"):
            for model in MODELS:
                record = Telemetry(model, gateway, "b", self._beat, 0, 1000, 0, ARRIVALS, *[0] * 9)
                for _ in range(1 + sent_twice):
                    await self._producer.send(
                        self.broker.name(TELEMETRY), encode(record), key=model.encode()
                    )
        await self._producer.flush()
        self.sent += 2 * ARRIVALS

    async def start_worker(self) -> asyncio.subprocess.Process:
        """Start a worker and wait until it has partitions."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "streams.windows", "--broker", self.broker.bootstrap,
            "--prefix", self.broker.prefix, "--time-base", self.base.format(),
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        self.workers.append(process)
        assert process.stdout is not None
        async with asyncio.timeout(HANG_S):
            assert json.loads(await process.stdout.readline())["ready"] is True
        return process

    def successor(self) -> Fleet:
        """The same fleet, read by another controller."""
        made = Fleet(self.broker, self._producer, self.base.speed)
        made.base, made.clock, made.sent = self.base, self.clock, self.sent
        made.merged = Recorder(self.clock)
        return made

    def counted(self) -> list[int]:
        """Arrivals by model."""
        now_ms = self.clock.now_ms() + 1000
        found = [self.windows.stats(model, now_ms, HORIZON_S) for model in MODELS]
        return [one.arrivals if isinstance(one, Stats) else 0 for one in found]

    async def exact(self) -> None:
        """Wait until everything that was sent is counted. Nothing may be counted twice."""
        async with asyncio.timeout(HANG_S):
            while min(self.counted()) < self.sent:
                await asyncio.sleep(0.05)
        assert self.counted() == [self.sent] * len(MODELS)


@contextlib.asynccontextmanager
async def fleet(broker: Broker, speed: float = 1.0) -> AsyncIterator[Fleet]:
    """A fleet with topics of its own."""
    if broker.kind == "kafka":
        broker = Broker(broker.kind, broker.bootstrap, f"test-{uuid.uuid4().hex[:8]}.")
        await ensure_topics(broker.bootstrap, broker.prefix)
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    made = Fleet(broker, producer, speed)
    try:
        yield made
    finally:
        await producer.stop()
        for worker in made.workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
        if broker.kind == "kafka":
            admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
            await admin.start()
            await admin.delete_topics([topic.wire_name(broker.prefix) for topic in TABLE])
            await admin.close()


@contextlib.asynccontextmanager
async def following(source: Any, sink: Sink) -> AsyncIterator[None]:
    """A context in which `source` is followed after it was replayed."""
    await source.replay(sink)
    task = asyncio.create_task(source.follow(sink))
    try:
        yield
        assert not task.done(), task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("speed", [1.0, 10.0])
async def test_a_controller_merges_the_records_that_the_log_determines(
    broker: Broker, speed: float
) -> None:
    """Its own reader and a merger that reads the finished log compute equal records. A record that
    a gateway sent twice counts once.
    """
    async with fleet(broker, speed) as world:
        own = world.reader(TelemetryTopic)
        async with following(own, world.sink):
            for beat in range(6):
                await world.beat(sent_twice=beat == 2)
                await asyncio.sleep(0.05)
            await world.exact()
        name, expected = world.broker.name(TELEMETRY), {}
        parts = [TopicPartition(name, number) for number in range(TELEMETRY.partitions)]
        log = await read_raw(world.broker, parts, 7 * 2 * len(MODELS))
        for number in range(TELEMETRY.partitions):
            merger = PartitionMerger(number, world.base, Verifier(Keys()), print, lambda: 0.0)
            of = [one for one in log if one.partition == number]
            ended = [merger.take(o.offset, o.timestamp, o.value, o.headers) for o in of]
            for batch in (*ended, merger.open):
                for one in merger.merge(batch) if batch is not None else ():
                    expected[one.model, number, one.last_offset] = one
        assert world.merged.read == expected and len(expected) >= len(MODELS)


@pytest.mark.embedded_gap("its groups do not share partitions reliably: workers refuse it")
@pytest.mark.parametrize("speed", [1.0, 10.0])
async def test_workers_and_a_controller_merge_equal_records(broker: Broker, speed: float) -> None:
    async with fleet(broker, speed) as world:
        for _ in range(2):
            await world.start_worker()
        other = Recorder(world.clock)
        own = world.reader(TelemetryTopic, merged=other)
        demand = world.reader(DemandTopic)
        async with following(own, lambda *_: None), following(demand, world.sink):
            for _ in range(8):
                await world.beat()
                await asyncio.sleep(0.1)
            await world.exact()
            ends = {key[1:] for key in world.merged.read}
            await until(lambda: world.merged.read.keys() <= other.read.keys())
        # Workers begin at the end of a new topic, so both have read every record.
        assert {key: other.read[key] for key in world.merged.read} == world.merged.read
        assert len(ends) >= 8


@pytest.mark.embedded_gap("its groups do not share partitions reliably: workers refuse it")
async def test_a_worker_is_killed_and_nothing_is_lost_or_counted_twice(broker: Broker) -> None:
    """Two workers share the load, and one is killed during its work. Every request is counted
    once.
    """
    async with fleet(broker) as world:
        workers = [await world.start_worker(), await world.start_worker()]
        async with following(world.reader(DemandTopic), world.sink):
            for beat in range(8):
                await world.beat()
                if beat == 3:
                    workers[0].kill()
                await asyncio.sleep(0.25)
            await world.exact()


@pytest.mark.embedded_gap("its groups do not share partitions reliably: workers refuse it")
@pytest.mark.parametrize("speed", [1.0, 30.0])
async def test_a_controller_merges_while_workers_are_absent(broker: Broker, speed: float) -> None:
    """It says so, and leaves it to the workers when they are back. Then they are killed, and a new
    controller takes over.
    """
    async with fleet(broker, speed) as world:
        worker = await world.start_worker()
        ends = TelemetryEnds(world.broker.bootstrap, world.broker.prefix, {})

        def source(of: Fleet) -> WorkerDemand:
            own = partial(of.reader, TelemetryTopic)
            return WorkerDemand(of.reader(DemandTopic), own, ends, steady_s=0.0)

        async def beats_until(merger: Merger) -> None:
            async with asyncio.timeout(HANG_S):
                while first.merging().merger is not merger:
                    await world.beat()
                    await asyncio.sleep(0.2)

        first = source(world)
        async with following(first, world.sink):
            await beats_until(Merger.WORKERS)
            assert first.merging().late_s == 0.0
            worker.kill()
            await beats_until(Merger.WORKERS_LATE)
            assert first.merging().late_s > 0.0
            await world.exact()
            successor = world.successor()
            async with following(source(successor), successor.sink):
                await successor.exact()
                await world.start_worker()
                await beats_until(Merger.WORKERS)
                await world.exact()
                successor.sent = world.sent
                await successor.exact()
        await ends.close()
