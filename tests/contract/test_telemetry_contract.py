"""Telemetry with both brokers and all partitions: replayed to the end, then followed."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from streams.broker.consumer_lag import ConsumerLag
from streams.broker.topic_admin import ensure_topics
from streams.clock import Clock, Times
from streams.invalid_records import Poison
from streams.ports.merged_records import MERGED
from streams.ports.telemetry_topic import TelemetryTopic
from tests.contract.brokers import (
    Broker,
    telemetry,
    until,
    write,
)
from tests.hang_limit import HANG_S
from topics.codec import encode
from topics.edge.kafka_clients import consumer as new_consumer
from topics.records import Telemetry
from topics.telemetry_columns import COLUMNS, TelemetryBatch
from topics.time_base import TimeBase
from topics.topic_table import (
    DAY_MS,
    DEAD_LETTERS,
    TABLE,
    TELEMETRY,
    Cleanup,
    Topic,
)


class Counted:
    """Counts the arrivals of merged records. ends_ms: their event times."""

    def __init__(self) -> None:
        self.arrivals = 0
        self.ends_ms: list[int] = []
        self.changed = asyncio.Event()

    def sink(self, records: TelemetryBatch, ends_ms: Times) -> None:
        merged = [name[1].startswith(MERGED) for name in records.names]
        self.arrivals += int(records.numbers[merged, COLUMNS.index("arrivals")].sum())
        self.ends_ms += ends_ms.tolist()
        self.changed.set()


@pytest.mark.embedded_gap("it has the partitions that it was started with")
async def test_telemetry_with_other_than_the_declared_partitions_is_read_whole(
    broker: Broker,
) -> None:
    """The broker reports the number of partitions, even if partitions are added later."""
    prefix = f"{broker.prefix}few."
    few = Topic("telemetry", 3, Cleanup.DELETE, DAY_MS, Telemetry, lambda r: str(r.model))
    await ensure_topics(broker.bootstrap, prefix, table=[few])
    found = await ensure_topics(broker.bootstrap, prefix)
    assert found.partitions[TELEMETRY.name] == 3
    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    counted = Counted()
    source = TelemetryTopic(broker.bootstrap, prefix, clock, print, found.partitions, 60)
    writer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await writer.start()
    following = asyncio.create_task(source.follow(counted.sink))
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        name = TELEMETRY.wire_name(prefix)
        for part in range(3):
            await writer.send_and_wait(name, encode(telemetry(part)), partition=part)
        await until(lambda: counted.arrivals >= 9, counted.changed)
        await admin.create_partitions({name: NewPartitions(5)})
        while (found := await ensure_topics(broker.bootstrap, prefix)).partitions["telemetry"] < 5:
            await asyncio.sleep(0.05)
        source.repartition(found.partitions)
        late = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        await late.start()
        for part in range(5):
            await late.send_and_wait(name, encode(telemetry(10 + part)), partition=part)
        await late.stop()
        await until(lambda: counted.arrivals >= 24, counted.changed)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await writer.stop()
        await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
        await admin.close()


async def test_telemetry_is_replayed_to_the_end_and_followed_from_there(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """Every record is read once, with its event time, including those around the end of the replay.
    Invalid records are reported.
    """
    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    for sequence in range(30):
        await write(producer, broker, telemetry(sequence))
    await producer.send_and_wait(broker.name(TELEMETRY), b"rubbish", key=b"tiny")
    bad: list[Poison] = []
    counted = Counted()
    source = TelemetryTopic(
        broker.bootstrap, broker.prefix, clock, bad.append, {}, 60, broker.kind == "embedded"
    )
    await source.replay(counted.sink)
    assert counted.arrivals == 30 * 3
    assert [one.value for one in bad] == [b"rubbish"]
    await write(producer, broker, telemetry(30))
    task = asyncio.create_task(source.follow(counted.sink))
    try:
        await write(producer, broker, telemetry(31))
        await until(lambda: counted.arrivals >= 32 * 3, counted.changed)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert counted.arrivals == 32 * 3
    assert all(clock.now_ms() - 60_000 < event <= clock.now_ms() for event in counted.ends_ms)


async def test_the_number_of_unread_records_is_known(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """The topic has thirty records. Seven are read first, then the others."""
    part = TopicPartition(broker.name(DEAD_LETTERS), 0)
    for _ in range(30):
        await producer.send_and_wait(part.topic, b"{}", partition=0)
    reading = new_consumer(broker.bootstrap, "behind", fetch_max_wait_ms=40)
    await reading.start()
    try:
        reading.assign([part])
        for most in (7, 23):
            read, behind = 0, ConsumerLag(broker.prefix)
            async with asyncio.timeout(HANG_S):
                while read < most:
                    batches = await reading.getmany(timeout_ms=100, max_records=most - read)
                    read += sum(len(messages) for messages in batches.values())
            await behind.update(reading)
            assert behind.records == {DEAD_LETTERS.name: 23 if most == 7 else 0}
    finally:
        await reading.stop()
