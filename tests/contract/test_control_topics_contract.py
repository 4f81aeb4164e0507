"""Control topics with both brokers: first the last value of every key, then every new record."""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka import AIOKafkaProducer

from streams.broker.topic_admin import ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.loop.control_state import ControlState
from tests.contract.brokers import (
    Broker,
    read_latest,
    status,
    until,
    write,
)
from topics.codec import encode
from topics.keys import Keys
from topics.macs import Verifier
from topics.records import Assignment, DesiredInstance, Leadership, Status
from topics.signing import sign_record
from topics.topic_table import (
    ASSIGNMENTS,
    LEADERSHIP,
    STATUS,
)


async def test_following_continues_exactly_after_the_initial_read(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """No record is read twice or missed. An invalid record is reported. It hides no other record
    and stops no reader.
    """
    for number in range(20):
        await write(producer, broker, status(f"n{number % 5}", number))
    await producer.send_and_wait(broker.name(STATUS), b"before", key=b"n1")
    latest, poison = await read_latest(broker)
    assert {n: s.observed_generation for n, s in latest.statuses.items()} == {
        f"n{k}": 15 + k for k in range(5)
    }
    assert [one.value for one in poison] == [b"before"]

    seen: list[int] = []
    bad: list[bytes] = []
    gone: list[tuple[str, str]] = []
    changed = asyncio.Event()

    def on_record(_topic: str, record: Any, _offset: int, _ms: int) -> None:
        seen.append(record.observed_generation)
        changed.set()

    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        on_record,
        lambda topic, key: gone.append((topic, key)),
        lambda one: bad.append(one.value),
        embedded=found.embedded,
        topics=[STATUS],
    )
    await control.start()
    started, bad[:] = len(seen), []
    await write(producer, broker, status("n1", 100))
    await producer.send_and_wait(broker.name(STATUS), b"while away", key=b"n1")
    await producer.send_and_wait(broker.name(STATUS), None, key=b"n4")
    following = asyncio.create_task(control.follow())
    try:
        await write(producer, broker, status("n1", 101))
        await until(lambda: 101 in seen, changed)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await control.close()  # as after a lost connection
        following = asyncio.create_task(control.follow())
        await write(producer, broker, status("n2", 102))
        await write(producer, broker, status("n4", 103))
        await until(lambda: {102, 103} <= set(seen), changed)
        await control.caught_up()
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await control.close()
    assert sorted(seen[started:]) == [100, 101, 102, 103]
    assert bad == [b"while away"]
    assert gone == [("status", "n4")]


async def test_a_start_decodes_the_last_records_of_each_key_only(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """An hour of heartbeats costs no more than the last few. A node with an old status is found if
    it has an assignment.
    """
    old = Status("n-old", "there/l4/owned", "executor-1", 7, 1000)
    await write(producer, broker, old)
    desired = DesiredInstance("i", "m", "aggregated", "g:1", (0,))
    await write(producer, broker, Assignment("n-old", "there/l4/owned", 7, 1, 0, (desired,)))
    await write(producer, broker, Leadership("x", "x", "claim", 1, 100))
    beats = [encode(status(f"n{node}", 1)) for node in range(40)]
    for _ in range(250):
        for node, beat in enumerate(beats):
            await producer.send(broker.name(STATUS), beat, key=b"n%d" % node)
    await producer.flush()
    latest = ControlState()
    offsets: list[int] = []

    def take(_topic: str, record: Any, offset: int, _ms: int) -> None:
        offsets.append(offset)
        latest.take(record, offset)

    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        take,
        latest.drop,
        lambda _poison: None,
        lambda: [node for node, record in latest.desired.assignments.items() if record.instances],
        found.embedded,
        topics=[LEADERSHIP, ASSIGNMENTS, STATUS],
    )
    try:
        await control.start()
    finally:
        await control.close()
    assert {f"n{node}" for node in range(40)} <= set(latest.statuses)
    assert latest.statuses["n-old"].observed_generation == 7
    assert len(offsets) < 250


async def test_a_start_reports_no_forged_record_that_a_valid_one_replaces(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """After the cluster's key was changed, each key has old records signed with the former key.
    Forged records after the last valid one are reported."""
    keys, former = Keys("c" * 32), Keys("f" * 32)
    for node in range(30):
        desired = Assignment(f"rotated-{node}", "there/l4/owned", 1, 1, 0, ())
        for signed_with in (former, former, keys):
            await write(producer, broker, sign_record(desired, signed_with, 1, 60_000))
    forged = sign_record(Assignment("rotated-7", "there/l4/owned", 2, 9, 0, ()), former, 1, 60_000)
    await write(producer, broker, forged)
    read: list[str] = []
    bad: list[bytes] = []
    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        lambda _topic, record, _offset, _ms: read.append(record.node),
        lambda _topic, _key: None,
        lambda poison: bad.append(poison.value),
        embedded=found.embedded,
        topics=[ASSIGNMENTS],
        verifier=Verifier(keys, rereads=True),
    )
    try:
        await control.start()
    finally:
        await control.close()
    assert set(read) == {f"rotated-{node}" for node in range(30)}
    assert [value for value in bad if b"rotated" in value] == [encode(forged)]
