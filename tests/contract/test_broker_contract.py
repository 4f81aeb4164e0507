"""The broker features that Shoal needs: one suite over the embedded broker and a real Kafka.

SHOAL_TEST_KAFKA=HOST:PORT names the real one (`make kafka` runs one). Features that the embedded
broker lacks are in `test_broker_guarantees`.
"""

from __future__ import annotations

import asyncio
import time

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from streams.broker.topic_admin import ensure_topics
from tests.contract.brokers import Broker, end_of, new_producer, read_raw
from tests.hang_limit import HANG_S
from topics.topic_table import ASSIGNMENTS, DECISIONS, LEADERSHIP, TABLE, TELEMETRY


async def test_every_topic_of_the_table_exists_with_its_partitions(broker: Broker) -> None:
    """A worker never finds a topic missing."""
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        described = await admin.describe_topics([broker.name(topic) for topic in TABLE])
    finally:
        await admin.close()
    assert {topic["topic"]: len(topic["partitions"]) for topic in described} == {
        broker.name(topic): topic.partitions for topic in TABLE
    }


async def test_ensuring_the_topics_again_creates_nothing(broker: Broker) -> None:
    """Several processes may do this at any time."""
    first, second = await asyncio.gather(
        ensure_topics(broker.bootstrap, broker.prefix),
        ensure_topics(broker.bootstrap, broker.prefix),
    )
    assert first.created == second.created == ()
    assert first.embedded == (broker.kind == "embedded")
    assert first.partitions == second.partitions == {t.name: t.partitions for t in TABLE}


async def test_keys_values_and_headers_come_back_in_order(broker: Broker) -> None:
    """Records of a partition keep their order, and their bytes are unchanged."""
    partition = TopicPartition(broker.name(TELEMETRY), 3)
    start = await end_of(broker, partition)
    producer = await new_producer(broker)
    try:
        sent = [
            await producer.send(
                partition.topic,
                b"\x00\xff%d" % i,
                key=b"k%d" % (i % 3),
                headers=[("n", b"%d" % i)],
                partition=partition.partition,
            )
            for i in range(50)
        ]
        offsets = [(await future).offset for future in sent]
    finally:
        await producer.stop()
    assert offsets == list(range(start, start + 50))
    records = (await read_raw(broker, [partition], start + 50))[start:]
    assert [r.value for r in records] == [b"\x00\xff%d" % i for i in range(50)]
    assert [r.key for r in records] == [b"k%d" % (i % 3) for i in range(50)]
    assert [r.headers for r in records] == [(("n", b"%d" % i),) for i in range(50)]


async def test_one_key_always_goes_to_one_partition(broker: Broker) -> None:
    """So the assignments of a node are ordered, whichever process writes them."""
    places = set()
    for _ in range(2):
        producer = await new_producer(broker)
        try:
            for i in range(5):
                sent = await producer.send_and_wait(
                    broker.name(ASSIGNMENTS), b"%d" % i, key=b"node-1"
                )
                places.add(sent.partition)
        finally:
            await producer.stop()
    assert len(places) == 1


async def test_offsets_of_a_one_partition_topic_count_up_across_producers(broker: Broker) -> None:
    """The offset of a claim orders leaders, so a later claim must have a higher offset."""
    claims = []
    for _ in range(3):
        producer = await new_producer(broker)
        try:
            sent = await producer.send_and_wait(broker.name(LEADERSHIP), b"claim", key=b"claim")
            claims.append(sent.offset)
        finally:
            await producer.stop()
    assert claims == [claims[0], claims[0] + 1, claims[0] + 2]


async def test_a_new_reader_starts_at_the_requested_offset(broker: Broker) -> None:
    """A reader from `earliest` gets all stored records. The end offset is one after the last
    record.
    """
    partition = TopicPartition(broker.name(DECISIONS), 0)
    producer = await new_producer(broker)
    try:
        for i in range(4):
            await producer.send_and_wait(partition.topic, b"%d" % i, key=b"m")
    finally:
        await producer.stop()
    end = await end_of(broker, partition)
    assert len(await read_raw(broker, [partition], end)) == end
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([partition])
        consumer.seek(partition, end - 2)
        async with asyncio.timeout(HANG_S):
            last = await consumer.getone()
            assert (await consumer.beginning_offsets([partition]))[partition] == 0
        assert (last.offset, last.value) == (end - 2, b"2")
    finally:
        await consumer.stop()


async def test_a_group_continues_after_its_committed_offset(broker: Broker) -> None:
    """auto_offset_reset=earliest applies only to a group without a commit."""
    topic = broker.name(DECISIONS)
    producer = await new_producer(broker)
    try:
        for i in range(6):
            await producer.send_and_wait(topic, b"group %d" % i, key=b"m")
    finally:
        await producer.stop()

    async def take(group: str, count: int) -> list[int]:
        consumer = AIOKafkaConsumer(
            topic,
            bootstrap_servers=broker.bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            # The embedded broker blocks joins to a known group for the session timeout less 1 s;
            # a real Kafka allows no less than 6 s.
            session_timeout_ms=1500 if broker.kind == "embedded" else 6000,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        try:
            async with asyncio.timeout(HANG_S):
                offsets = [(await consumer.getone()).offset for _ in range(count)]
            await consumer.commit({TopicPartition(topic, 0): offsets[-1] + 1})
            return offsets
        finally:
            await consumer.stop()

    group = f"{broker.prefix}group"
    assert await take(group, 2) == [0, 1]
    assert await take(group, 3) == [2, 3, 4]
    assert await take(group + "-other", 1) == [0]


async def test_append_times_come_from_this_machine_and_never_decrease(broker: Broker) -> None:
    """Event times are calculated as `append time - age`."""
    partition = TopicPartition(broker.name(TELEMETRY), 5)
    before_ms = time.time() * 1e3
    producer = await new_producer(broker)
    try:
        for i in range(5):
            await producer.send_and_wait(partition.topic, b"%d" % i, partition=5)
    finally:
        await producer.stop()
    records = await read_raw(broker, [partition], 5)
    stamps = [record.timestamp for record in records]
    assert stamps == sorted(stamps)
    assert before_ms - 1 <= stamps[0] and stamps[-1] <= time.time() * 1e3 + 1
