"""What Shoal relies on in a broker: one suite over the embedded broker and over a real Kafka.

The real one is given with SHOAL_TEST_KAFKA=HOST:PORT (`make kafka` runs one). Nothing about
durability, compaction, rebalances or fencing is asked here: the embedded broker has none of it.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from streams.broker.admin import TopicsUnusable, ensure_topics
from tests.contract.brokers import Broker
from topics.table import ASSIGNMENTS, DECISIONS, LEADERSHIP, TABLE, TELEMETRY, Cleanup, Topic


async def _producer(broker: Broker) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await producer.start()
    return producer


async def _read(broker: Broker, partitions: list[TopicPartition], count: int) -> list[Any]:
    """The first `count` records of these partitions, as one reader without a group sees them."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        found: list[Any] = []
        async with asyncio.timeout(15):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += records
        return found
    finally:
        await consumer.stop()


async def _end(broker: Broker, partition: TopicPartition) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    try:
        return int((await consumer.end_offsets([partition]))[partition])
    finally:
        await consumer.stop()


async def test_every_topic_of_the_table_exists_with_its_partitions(broker: Broker) -> None:
    """A worker never meets a missing topic."""
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
    """Several processes may ensure the topics, at any time."""
    first, second = await asyncio.gather(
        ensure_topics(broker.bootstrap, broker.prefix),
        ensure_topics(broker.bootstrap, broker.prefix),
    )
    assert first.created == second.created == ()
    assert first.embedded == (broker.kind == "embedded")
    assert first.cluster_id and first.cluster_id == second.cluster_id


async def test_keys_values_and_headers_come_back_in_order(broker: Broker) -> None:
    """Order holds within a partition; bytes are untouched."""
    partition = TopicPartition(broker.name(TELEMETRY), 3)
    start = await _end(broker, partition)
    producer = await _producer(broker)
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
    records = (await _read(broker, [partition], start + 50))[start:]
    assert [r.value for r in records] == [b"\x00\xff%d" % i for i in range(50)]
    assert [r.key for r in records] == [b"k%d" % (i % 3) for i in range(50)]
    assert [r.headers for r in records] == [(("n", b"%d" % i),) for i in range(50)]


async def test_one_key_always_goes_to_one_partition(broker: Broker) -> None:
    """A node's assignments are ordered, whoever writes them."""
    places = set()
    for _ in range(2):
        producer = await _producer(broker)
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
    """The offset of a claim orders leaders: a later claim is always higher."""
    claims = []
    for _ in range(3):
        producer = await _producer(broker)
        try:
            sent = await producer.send_and_wait(broker.name(LEADERSHIP), b"claim", key=b"claim")
            claims.append(sent.offset)
        finally:
            await producer.stop()
    assert claims == [claims[0], claims[0] + 1, claims[0] + 2]


async def test_a_new_reader_starts_where_it_asks_to(broker: Broker) -> None:
    """Earliest sees everything kept; the end offset is one past the last record."""
    partition = TopicPartition(broker.name(DECISIONS), 0)
    producer = await _producer(broker)
    try:
        for i in range(4):
            await producer.send_and_wait(partition.topic, b"%d" % i, key=b"m")
    finally:
        await producer.stop()
    end = await _end(broker, partition)
    assert len(await _read(broker, [partition], end)) == end
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([partition])
        consumer.seek(partition, end - 2)
        async with asyncio.timeout(15):
            last = await consumer.getone()
            assert (await consumer.beginning_offsets([partition]))[partition] == 0
        assert (last.offset, last.value) == (end - 2, b"2")
    finally:
        await consumer.stop()


async def test_a_group_goes_on_after_what_it_committed(broker: Broker) -> None:
    """auto_offset_reset=earliest applies to a group without a commit only."""
    topic = broker.name(DECISIONS)
    producer = await _producer(broker)
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
            # The embedded broker lets nobody into a known group for the session timeout less 1 s;
            # a real one allows no less than 6 s.
            session_timeout_ms=1500 if broker.kind == "embedded" else 6000,
            heartbeat_interval_ms=500,
        )
        await consumer.start()
        try:
            async with asyncio.timeout(20):
                offsets = [(await consumer.getone()).offset for _ in range(count)]
            await consumer.commit({TopicPartition(topic, 0): offsets[-1] + 1})
            return offsets
        finally:
            await consumer.stop()

    group = f"{broker.prefix}group"
    assert await take(group, 2) == [0, 1]
    assert await take(group, 3) == [2, 3, 4]
    assert await take(group + "-other", 1) == [0]


async def test_append_times_are_of_this_machine_and_do_not_fall(broker: Broker) -> None:
    """Event times come from them: `append time - age`."""
    partition = TopicPartition(broker.name(TELEMETRY), 5)
    before_ms = time.time() * 1e3
    producer = await _producer(broker)
    try:
        for i in range(5):
            await producer.send_and_wait(partition.topic, b"%d" % i, partition=5)
    finally:
        await producer.stop()
    records = await _read(broker, [partition], 5)
    stamps = [record.timestamp for record in records]
    assert stamps == sorted(stamps)
    assert before_ms - 1 <= stamps[0] and stamps[-1] <= time.time() * 1e3 + 1
    if broker.kind == "kafka":
        assert {record.timestamp_type for record in records} == {1}, "log append time"


async def test_a_topic_that_would_lose_records_is_refused_by_name(broker: Broker) -> None:
    """A compacted topic that deletes by age would forget assignments: said, not repaired."""
    if broker.kind == "embedded":
        pytest.skip("the embedded broker has no clean-up policies")
    wrong = Topic("plans", 1, Cleanup.DELETE, 1000, None, (), lambda _: "")
    with pytest.raises(TopicsUnusable, match=r"plans exists with cleanup\.policy=compact"):
        await ensure_topics(broker.bootstrap, broker.prefix, table=[wrong])


async def test_settings_of_a_topic_that_exists_are_put_right_once(broker: Broker) -> None:
    """A broker's clock dates records and nothing goes too early, whoever made the topic; what an
    operator set beyond that stays."""
    if broker.kind == "embedded":
        pytest.skip("the embedded broker has no settings of topics")
    declared = Topic("mine", 2, Cleanup.DELETE, 7_200_000, None, (), lambda _: "")
    name = broker.name(declared)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        theirs = {
            "cleanup.policy": "delete", "message.timestamp.type": "CreateTime",
            "retention.ms": "60000", "max.message.bytes": "2000000",
        }  # fmt: skip
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs=theirs)])
        first = await ensure_topics(broker.bootstrap, broker.prefix, table=[declared])
        again = await ensure_topics(broker.bootstrap, broker.prefix, table=[declared])
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    finally:
        await admin.delete_topics([name])
        await admin.close()
    assert (first.changed, again.changed) == ((name,), ())
    assert first.partitions == {"mine": 1}, "keys would move"
    found = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert found["message.timestamp.type"] == "LogAppendTime"
    assert found["retention.ms"] == "7200000"
    assert found["max.message.bytes"] == "2000000"
