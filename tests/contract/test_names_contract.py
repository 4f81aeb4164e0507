"""Names with both brokers and a real controller: those that came and went leave no key."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.broker.topic_admin import ensure_topics
from streams.cli.main import main
from tests.contract.brokers import Broker, write
from tests.contract.controllers import CONFIG, Controller
from topics.records import Assignment, Routes
from topics.time_base import TimeBase
from topics.topic_table import ASSIGNMENTS, NAMES, ROUTES, SERVICES, Topic

NAMES_AT_ONCE = 20
# One node, which the first model takes: no executor runs, so no other instance would ever end.
ONE_NODE = CONFIG.replace("nodes: 2", "nodes: 1")
MORE = "".join(
    f"  m{k}: {{source: meta-llama/Llama-3.1-8B-Instruct, engine: fp8, "
    "slo: {ttft: 2s, tpot: 100ms}}\n"
    for k in range(NAMES_AT_ONCE)
)


async def keys(broker: Broker, topic: Topic) -> set[bytes | None]:
    """The keys of `topic` whose last record is no tombstone."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=50, isolation_level="read_committed"
    )
    await consumer.start()
    try:
        found = await ensure_topics(broker.bootstrap, broker.prefix)
        parts = [TopicPartition(broker.name(topic), k) for k in range(found.partitions[topic.name])]
        consumer.assign(parts)
        ends = await consumer.end_offsets(parts)
        for part, begin in (await consumer.beginning_offsets(parts)).items():
            consumer.seek(part, begin)
        last: dict[bytes | None, bytes | None] = {}
        while [part for part in parts if await consumer.position(part) < ends[part]]:
            for messages in (await consumer.getmany(timeout_ms=100)).values():
                last |= {message.key: message.value for message in messages}
        return {key for key, value in last.items() if value is not None}
    finally:
        await consumer.stop()


async def until_keys(broker: Broker, topic: Topic, wanted: set[bytes]) -> None:
    """Wait until the keys of `topic` are `wanted`."""
    async with asyncio.timeout(90):
        while await keys(broker, topic) != wanted:
            await asyncio.sleep(0.2)


async def test_withdrawn_and_forged_names_leave_no_key(
    broker: Broker, producer: AIOKafkaProducer, tmp_path: Path
) -> None:
    path = tmp_path / "shoal.yaml"
    path.write_text(ONE_NODE)
    base = TimeBase(1.0, time.time_ns() // 1_000_000, time.monotonic_ns())
    controller = await Controller.start(broker, path, base)
    try:
        await controller.says()

        async def apply(models: str) -> None:
            file = tmp_path / "applied.yaml"
            file.write_text(ONE_NODE.replace("engines:", models + "engines:"))
            options = ["--broker", broker.bootstrap, "--prefix", broker.prefix]
            code = await asyncio.to_thread(main, ["apply", "--config", str(file), *options])
            assert code == 0

        await apply(MORE)
        names = {f"m{k}".encode() for k in range(NAMES_AT_ONCE)}
        await until_keys(broker, ROUTES, {b"tiny", *names})
        await apply("")
        for k in range(50):
            await write(producer, broker, Assignment(f"x{k}", "p", 1, 0, base.origin_ms))
            await write(producer, broker, Routes(f"x{k}", 1, 0, base.origin_ms, 1.0, 1.0))
            await producer.send_and_wait(broker.name(ROUTES), b"junk", key=b"junk%d" % k)
        await until_keys(broker, SERVICES, {b"tiny"})
        await until_keys(broker, ROUTES, {b"tiny"})
        assert await keys(broker, NAMES) == {b"services"}
        async with asyncio.timeout(90):
            while any(key.startswith(b"x") for key in await keys(broker, ASSIGNMENTS) if key):
                await asyncio.sleep(0.2)
    finally:
        controller.kill()
        await controller.process.wait()
