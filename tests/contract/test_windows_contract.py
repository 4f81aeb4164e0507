"""Window workers on a real Kafka share partitions, may be killed, and count no request twice."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient

from autoscaler.estimate.windows import Stats, TelemetryWindows
from streams.broker.topic_admin import ensure_topics
from streams.clock import Clock
from streams.controller.demand_sources import merged_sink
from streams.ports.demand_topic import DemandTopic
from tests.contract.brokers import Broker
from tests.hang_limit import HANG_S
from topics.codec import encode
from topics.telemetry import Telemetry
from topics.time_base import TimeBase
from topics.topic_table import DEMAND, TABLE, TELEMETRY

MODELS = [f"model-{k}" for k in range(12)]
ARRIVALS = 7


async def _worker(broker: Broker, prefix: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.windows", "--broker", broker.bootstrap, "--prefix", prefix,
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def _ready(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(HANG_S):
        said: dict[str, Any] = json.loads(await process.stdout.readline())
    return said


@pytest.mark.embedded_gap("its groups do not share partitions reliably: workers refuse it")
async def test_a_worker_is_killed_and_nothing_is_lost_or_counted_twice(broker: Broker) -> None:
    """Two workers share the load, and one is killed during its work. Every
    request is counted once.
    """
    prefix = f"test-{uuid.uuid4().hex[:8]}."
    found = await ensure_topics(broker.bootstrap, prefix)
    clock = Clock(TimeBase(1.0, int(time.time() * 1000), time.monotonic_ns()))
    windows = TelemetryWindows(600)
    source = DemandTopic(
        broker.bootstrap, prefix, clock, print, found.partitions, 600, topic=DEMAND
    )
    workers = [await _worker(broker, prefix), await _worker(broker, prefix)]
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    following = asyncio.create_task(source.follow(merged_sink(windows, {}, lambda: None)))
    sent = 0
    try:
        for worker in workers:
            assert (await _ready(worker))["ready"] is True
        await asyncio.sleep(3.0)  # Let the group become stable. No event signals this.
        for beat in range(8):
            for model in MODELS:
                for gateway in ("a", "b"):
                    record = Telemetry(
                        model, gateway, "b", beat, 0, 1000, 0, ARRIVALS, *[0] * 9
                    )  # fmt: skip
                    await producer.send_and_wait(
                        TELEMETRY.wire_name(prefix), encode(record), key=model.encode()
                    )
            sent += 2 * ARRIVALS
            if beat == 3:
                workers[0].kill()
            await asyncio.sleep(0.5)

        def counted() -> list[int]:
            stats = [windows.stats(model, clock.now_ms() + 1000, 600) for model in MODELS]
            return [one.arrivals if isinstance(one, Stats) else 0 for one in stats]

        async with asyncio.timeout(HANG_S):
            while min(counted()) < sent:
                await asyncio.sleep(0.2)
        assert counted() == [sent] * len(MODELS)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await producer.stop()
        for worker in workers:
            if worker.returncode is None:
                worker.kill()
            await worker.wait()
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
        await admin.start()
        await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
        await admin.close()
