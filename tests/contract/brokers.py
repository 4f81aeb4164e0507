"""A broker under test, and helpers that write records to it and read them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.broker.topic_admin import ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.invalid_records import Poison
from streams.loop.control_state import ControlState
from tests.hang_limit import HANG_S
from topics.codec import decode, encode
from topics.records import Status, Telemetry
from topics.topic_table import Topic, key_of, topic_of


@dataclass(frozen=True)
class Broker:
    kind: str
    bootstrap: str
    prefix: str

    def name(self, topic: Topic) -> str:
        return topic.wire_name(self.prefix)


async def new_producer(broker: Broker, **more: Any) -> AIOKafkaProducer:
    """A started producer of `broker`."""
    producer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all", **more)
    await producer.start()
    return producer


async def read_raw(broker: Broker, partitions: list[TopicPartition], count: int) -> list[Any]:
    """The first `count` records of these partitions, read without a group."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        found: list[Any] = []
        async with asyncio.timeout(HANG_S):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found += records
        return found
    finally:
        await consumer.stop()


async def end_of(broker: Broker, partition: TopicPartition) -> int:
    """The offset after the last record of a partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap)
    await consumer.start()
    try:
        return int((await consumer.end_offsets([partition]))[partition])
    finally:
        await consumer.stop()


def status(node: str, generation: int) -> Status:
    """A status record of a node."""
    return Status(node, "there/l4/owned", "executor-1", generation, 1000 + generation)


def telemetry(sequence: int) -> Telemetry:
    """A telemetry record of a gateway."""
    return Telemetry("other", "g", "b", sequence, 1000, 1000, 0, 3, *[0] * 9)


async def write(producer: AIOKafkaProducer, broker: Broker, record: Any) -> None:
    """Write a record to its topic."""
    await producer.send_and_wait(broker.name(topic_of(record)), encode(record), key=key_of(record))


async def read(broker: Broker, topic: Topic, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """The committed records of a topic from its beginning, once `enough` accepts them.

    Records of open and aborted transactions are left out, and so are records whose key was deleted.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        fetch_max_wait_ms=50,
        isolation_level="read_committed",
    )
    await consumer.start()
    try:
        parts = [TopicPartition(broker.name(topic), n) for n in range(topic.partitions)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        found: list[Any] = []
        async with asyncio.timeout(HANG_S):
            while not enough(found):
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    for message in messages:
                        if message.value is not None:
                            found.append(decode(topic.name, message.value))
                        else:
                            found = [one for one in found if key_of(one) != message.key]
        return found
    finally:
        await consumer.stop()


async def until(condition: Callable[[], bool], changed: asyncio.Event) -> None:
    """Wait until `condition` holds. It is checked whenever `changed` is set."""
    async with asyncio.timeout(HANG_S):
        while not condition():
            changed.clear()
            await changed.wait()


async def read_latest(broker: Broker) -> tuple[ControlState, list[Poison]]:
    """The last values of the control topics, and the records that could not be decoded."""
    latest, poison = ControlState(), list[Poison]()
    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        lambda _topic, record, offset, _ms: latest.take(record, offset),
        latest.drop,
        poison.append,
        embedded=found.embedded,
    )
    try:
        await control.start()
    finally:
        await control.close()
    return latest, poison
