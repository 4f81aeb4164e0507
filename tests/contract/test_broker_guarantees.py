"""Guarantees of a real Kafka that the embedded broker does not give.

Each gap is a strict expected failure on the embedded broker. So a closed gap fails the suite, as
does an untested guarantee. Shoal may use these guarantees only if `EnsuredTopics.embedded` is
false.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, ProducerFenced

from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.cli import publish as command_line
from tests.contract.brokers import Broker, end_of, new_producer, read_raw, write
from tests.hang_limit import HANG_S
from topics.decisions import Decision
from topics.topic_table import DECISIONS, PLANS, TELEMETRY, Cleanup, Topic

gap = pytest.mark.embedded_gap


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[AIOKafkaAdminClient]:
    client = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap, request_timeout_ms=5000)
    await client.start()
    yield client
    await client.close()


async def _committed(broker: Broker, partition: TopicPartition, start: int) -> list[bytes]:
    """The committed records from `start` to the end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        consumer.assign([partition])
        consumer.seek(partition, start)
        end = (await consumer.end_offsets([partition]))[partition]
        found: list[bytes] = []
        async with asyncio.timeout(HANG_S):
            while await consumer.position(partition) < end:
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    found += [record.value for record in records]
        return found
    finally:
        await consumer.stop()


@gap("its transactions fence no producer: a replaced leader could still write")
async def test_a_second_leader_fences_the_first(broker: Broker) -> None:
    """A cluster has one transactional id, so the broker itself refuses a former leader."""
    ours = {"transactional_id": f"{broker.prefix}fencing"}
    stale = await new_producer(broker, **ours)
    try:
        await stale.begin_transaction()
        await stale.send_and_wait(broker.name(PLANS), b"open", key=b"p")
        leader = await new_producer(broker, **ours)
        await leader.stop()
        with pytest.raises(ProducerFenced):
            await stale.send_and_wait(broker.name(PLANS), b"stale", key=b"p")
    finally:
        await _stopped(stale)


@gap("readers of committed records see aborted ones")
async def test_records_of_an_aborted_transaction_are_never_read(broker: Broker) -> None:
    """Readers get a plan together with its assignments, or neither."""
    place = TopicPartition(broker.name(PLANS), 0)
    start = await end_of(broker, place)
    writer = await new_producer(broker, transactional_id=f"{broker.prefix}aborting")
    try:
        await writer.begin_transaction()
        await writer.send_and_wait(place.topic, b"aborted", key=b"p")
        await writer.abort_transaction()
        async with writer.transaction():
            await writer.send_and_wait(place.topic, b"said", key=b"p")
    finally:
        await writer.stop()
    assert await _committed(broker, place, start) == [b"said"]


@gap("readers of committed records see aborted ones")
async def test_the_open_transaction_of_a_killed_leader_stays_invisible(broker: Broker) -> None:
    """The next leader aborts it, so no reader sees its decision; neither does the command line."""
    known = Decision(1, 1, "*", "hold", 1000, applied=True, reason="the first life")
    killed = await new_producer(broker, transactional_id=f"{broker.prefix}killed")
    shown = command_line.Broker(broker.bootstrap, broker.prefix, 0)
    try:
        async with killed.transaction():
            await write(killed, broker, known)
        await killed.begin_transaction()
        await write(killed, broker, replace(known, number=2))
        assert await asyncio.to_thread(shown.last, DECISIONS) == [known]
        await (await new_producer(broker, transactional_id=f"{broker.prefix}killed")).stop()
        assert await asyncio.to_thread(shown.last, DECISIONS) == [known]
    finally:
        await _stopped(killed)


async def _stopped(producer: AIOKafkaProducer) -> None:
    with contextlib.suppress(KafkaError):
        await producer.stop()


@gap("topics exist only if the broker was started with them")
async def test_topics_are_created_while_the_broker_runs(
    broker: Broker, admin: AIOKafkaAdminClient
) -> None:
    """A new prefix gets its own topics in addition to the existing ones."""
    one = Topic("one", 2, Cleanup.DELETE, 7_200_000, Decision, lambda _: "")
    prefix = f"{broker.prefix}other."
    try:
        found = await ensure_topics(broker.bootstrap, prefix, table=[one])
        assert found.created == (f"{prefix}one",)
        assert found.partitions == {"one": 2}
    finally:
        await admin.delete_topics([f"{prefix}one"])


@gap("it dates records as their writers do, with whatever clock these have")
async def test_the_broker_dates_records(broker: Broker) -> None:
    """Clocks of executors and gateways do not count."""
    place = TopicPartition(broker.name(TELEMETRY), 6)
    ahead_ms = int(time.time() * 1e3) + 3_600_000
    producer = await new_producer(broker)
    try:
        await producer.send_and_wait(place.topic, b"ahead", partition=6, timestamp_ms=ahead_ms)
    finally:
        await producer.stop()
    (record,) = await read_raw(broker, [place], 1)
    assert record.timestamp < ahead_ms - 3_500_000


@gap("it finds no offset by time: controllers scan back from the end instead")
async def test_offsets_are_found_by_time(broker: Broker) -> None:
    """A controller starts to read its windows at the offset of their first second."""
    place = TopicPartition(broker.name(TELEMETRY), 7)
    producer = await new_producer(broker)
    for number in range(3):
        await producer.send_and_wait(place.topic, b"%d" % number, partition=7)
        await asyncio.sleep(0.01)
    await producer.stop()
    second = (await read_raw(broker, [place], 3))[1]
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    try:
        found = await consumer.offsets_for_times({place: second.timestamp})
        past_the_end = await consumer.offsets_for_times({place: second.timestamp + 60_000})
    finally:
        await consumer.stop()
    assert found[place].offset == second.offset
    assert past_the_end[place] is None


@gap("it keeps about 5 MB per partition, whatever the retention")
async def test_records_are_kept_for_the_whole_retention_time(broker: Broker) -> None:
    """A day of telemetry is still available after a busy hour."""
    place = TopicPartition(broker.name(TELEMETRY), 2)
    producer = await new_producer(broker)
    first = await producer.send_and_wait(place.topic, b"first", partition=2)
    for _ in range(10):
        await producer.send_and_wait(place.topic, bytes(900_000), partition=2)
    await producer.stop()
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    try:
        assert (await consumer.beginning_offsets([place]))[place] <= first.offset
    finally:
        await consumer.stop()


@gap("two members of a group do not share its partitions reliably")
async def test_members_of_a_group_share_partitions_and_take_over(broker: Broker) -> None:
    """Window workers may join and leave a group."""
    options: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap, "group_id": f"{broker.prefix}{uuid.uuid4().hex}",
        "session_timeout_ms": 6000, "heartbeat_interval_ms": 500,
    }  # fmt: skip
    first = AIOKafkaConsumer(broker.name(TELEMETRY), **options)
    second = AIOKafkaConsumer(broker.name(TELEMETRY), **options)
    every = set(range(TELEMETRY.partitions))

    async def until(share: int, *members: AIOKafkaConsumer) -> None:
        """Wait until each of `members` has `share` partitions, and together they have all."""
        async with asyncio.timeout(HANG_S):
            while True:
                shares = [{place.partition for place in one.assignment()} for one in members]
                if set().union(*shares) == every and {len(one) for one in shares} == {share}:
                    return
                for one in members:
                    await one.getmany(timeout_ms=50)

    await first.start()
    try:
        await until(8, first)
        await second.start()
        try:
            await until(4, first, second)
        finally:
            await second.stop()
        await until(8, first)
    finally:
        await first.stop()


@gap("it compacts nothing, and takes no topic with settings of its own")
async def test_the_last_record_of_each_key_is_kept(
    broker: Broker, admin: AIOKafkaAdminClient
) -> None:
    """Control topics stay as small as their latest records."""
    name = f"{broker.prefix}compacted"
    settings = {
        "cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01",
    }  # fmt: skip
    await admin.create_topics([NewTopic(name, 1, 1, topic_configs=settings)])
    try:
        place = TopicPartition(name, 0)
        producer = await new_producer(broker)
        async with asyncio.timeout(HANG_S), contextlib.aclosing(_rounds()) as rounds:
            async for number in rounds:
                for key in (b"a", b"b"):
                    await producer.send_and_wait(name, b"%d" % number, key=key)
                kept = await _committed(broker, place, 0)
                if kept and kept[0] != b"0":
                    break
        await producer.stop()
    finally:
        await admin.delete_topics([name])
    assert kept[-2:] == [b"%d" % number] * 2
    assert len(kept) < 2 * (number + 1)


async def _rounds() -> AsyncIterator[int]:
    """Numbers, separated by the time of a log segment."""
    for number in itertools.count():
        yield number
        await asyncio.sleep(0.15)


@gap("it has no clean-up policies")
async def test_a_topic_that_would_lose_records_is_refused_by_name(broker: Broker) -> None:
    """A compacted topic that also deletes by age would lose assignments. It is refused, not
    corrected.
    """
    wrong = Topic("plans", 1, Cleanup.DELETE, 1000, Decision, lambda _: "")
    with pytest.raises(TopicsUnusable, match=r"plans exists with cleanup\.policy=compact"):
        await ensure_topics(broker.bootstrap, broker.prefix, table=[wrong])


@gap("it has no settings of topics")
async def test_settings_of_an_existing_topic_are_corrected_once(broker: Broker) -> None:
    """After the correction the broker dates records, and no record is deleted too early, whichever
    client created the topic. Other settings of the operator stay.
    """
    declared = Topic("mine", 2, Cleanup.DELETE, 7_200_000, Decision, lambda _: "")
    name = broker.name(declared)
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        theirs = {
            "cleanup.policy": "delete", "message.timestamp.type": "CreateTime",
            "retention.ms": "60000", "max.message.bytes": "2000000",
        }  # fmt: skip
        await admin.create_topics([NewTopic(name, 1, 1, topic_configs=theirs)])
        async with asyncio.timeout(HANG_S):
            while (
                name not in await admin.list_topics()
            ):  # A busy broker lists the topic a little later.
                await asyncio.sleep(0.05)
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
