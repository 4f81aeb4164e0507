"""The controller's edge over both brokers: rebuild, agents, hot path, and the whole process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions

from streams.broker.admin import ensure_topics
from streams.clock import Clock
from streams.controller.control_topics import ControlTopics
from streams.controller.latest import Latest
from streams.poison import Poison
from streams.ports.telemetry_topic import TelemetryTopic
from tests.contract.brokers import Broker, read_latest
from topics.codec import decode, encode
from topics.records import Assignment, DesiredInstance, Leadership, Status, Telemetry
from topics.table import (
    ASSIGNMENTS,
    DAY_MS,
    DEAD_LETTERS,
    DECISIONS,
    LEADERSHIP,
    STATUS,
    TABLE,
    TELEMETRY,
    Cleanup,
    Topic,
    key_of,
    topic_of,
)
from topics.timebase import TimeBase

CONFIG = """
mode: act
regions:
  here:
    l4: {gpu: L4, per_node: 1, nodes: 2, owned: true}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    engine: fp8
    slo: {ttft: 2s, tpot: 100ms}
    min: 1
engines:
  fp8: {args: [--quantization=fp8]}
"""


def status(node: str, generation: int) -> Status:
    return Status(node, "there/l4/owned", "executor-1", generation, 1000 + generation)


def telemetry(sequence: int) -> Telemetry:
    return Telemetry("other", "g", "b", sequence, 1000, 1000, 0, 3, *[0] * 9)


@pytest.fixture
async def producer(broker: Broker) -> AsyncIterator[AIOKafkaProducer]:
    made = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await made.start()
    yield made
    await made.stop()


async def write(producer: AIOKafkaProducer, broker: Broker, record: Any) -> None:
    await producer.send_and_wait(broker.name(topic_of(record)), encode(record), key=key_of(record))


async def read(broker: Broker, topic: Topic, enough: Callable[[list[Any]], bool]) -> list[Any]:
    """Records of a topic from its beginning until there are enough of them."""
    consumer = AIOKafkaConsumer(bootstrap_servers=broker.bootstrap, fetch_max_wait_ms=50)
    await consumer.start()
    try:
        parts = [TopicPartition(broker.name(topic), n) for n in range(topic.partitions)]
        consumer.assign(parts)
        await consumer.seek_to_beginning(*parts)
        found: list[Any] = []
        async with asyncio.timeout(30):
            while not enough(found):
                for messages in (await consumer.getmany(timeout_ms=200)).values():
                    found += [decode(topic.name, message.value) for message in messages]
        return found
    finally:
        await consumer.stop()


async def until(condition: Callable[[], bool], changed: asyncio.Event) -> None:
    async with asyncio.timeout(30):
        while not condition():
            changed.clear()
            await changed.wait()


async def test_following_goes_on_exactly_where_the_start_ended(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """Nothing is read twice and nothing missed; poison is told, hides nothing and stops nobody."""
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
    """An hour of heartbeats costs no more than the last few, and a node that was heard of long ago
    is found where it is assigned something."""
    old = Status("n-old", "there/l4/owned", "executor-1", 7, 1000)
    await write(producer, broker, old)
    desired = DesiredInstance("i", "m", "aggregated", "g:1", (0,))
    await write(producer, broker, Assignment("n-old", "there/l4/owned", 7, 1, 0, (desired,)))
    await write(producer, broker, Leadership("x", "x", "claim", 1, "", 100))
    beats = [encode(status(f"n{node}", 1)) for node in range(40)]
    for _ in range(250):
        for node, beat in enumerate(beats):
            await producer.send(broker.name(STATUS), beat, key=b"n%d" % node)
    await producer.flush()
    latest = Latest()
    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        lambda _topic, record, offset, _ms: latest.take(record, offset),
        latest.drop,
        lambda _poison: None,
        lambda: [node for node, record in latest.assignments.items() if record.instances],
        found.embedded,
        topics=[LEADERSHIP, ASSIGNMENTS, STATUS],
    )
    try:
        await control.start()
    finally:
        await control.close()
    assert {f"n{node}" for node in range(40)} <= set(latest.statuses)
    assert latest.statuses["n-old"].observed_generation == 7
    assert control.read < 250


async def test_telemetry_with_other_than_the_declared_partitions_is_read_whole(
    broker: Broker,
) -> None:
    """How many there are is what the broker says, also where some are added later."""
    if broker.kind == "embedded":
        pytest.skip("the embedded broker has the declared partitions")
    prefix = f"{broker.prefix}few."
    few = Topic("telemetry", 3, Cleanup.DELETE, DAY_MS, Telemetry, (), lambda r: str(r.model))
    await ensure_topics(broker.bootstrap, prefix, table=[few])
    found = await ensure_topics(broker.bootstrap, prefix)
    assert found.partitions[TELEMETRY.name] == 3
    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    seen: set[int] = set()
    changed = asyncio.Event()

    def sink(record: Telemetry, _event_ms: int) -> None:
        seen.add(record.sequence)
        changed.set()

    source = TelemetryTopic(broker.bootstrap, prefix, clock, print, found.partitions, 60)
    writer = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
    await writer.start()
    following = asyncio.create_task(source.follow(sink))
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap)
    await admin.start()
    try:
        name = TELEMETRY.wire_name(prefix)
        for part in range(3):
            await writer.send_and_wait(name, encode(telemetry(part)), partition=part)
        await until(lambda: seen >= {0, 1, 2}, changed)
        await admin.create_partitions({name: NewPartitions(5)})
        while (found := await ensure_topics(broker.bootstrap, prefix)).partitions["telemetry"] < 5:
            await asyncio.sleep(0.05)
        source.repartition(found.partitions)
        late = AIOKafkaProducer(bootstrap_servers=broker.bootstrap, acks="all")
        await late.start()
        for part in range(5):
            await late.send_and_wait(name, encode(telemetry(10 + part)), partition=part)
        await late.stop()
        await until(lambda: seen >= set(range(10, 15)), changed)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await writer.stop()
        await admin.delete_topics([topic.wire_name(prefix) for topic in TABLE])
        await admin.close()


async def test_telemetry_is_replayed_to_the_end_and_followed_from_there(
    broker: Broker, producer: AIOKafkaProducer
) -> None:
    """Every record once, across the seam, with its event time; poison is told."""
    clock = Clock(TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns()))
    for sequence in range(30):
        await write(producer, broker, telemetry(sequence))
    await producer.send_and_wait(broker.name(TELEMETRY), b"rubbish", key=b"tiny")
    bad: list[Poison] = []
    seen: list[tuple[int, int]] = []
    changed = asyncio.Event()

    def sink(record: Telemetry, event_ms: int) -> None:
        seen.append((record.sequence, event_ms))
        changed.set()

    source = TelemetryTopic(
        broker.bootstrap, broker.prefix, clock, bad.append, {}, 60, broker.kind == "embedded"
    )
    await source.replay(sink)
    assert [sequence for sequence, _ in seen] == list(range(30))
    assert [one.value for one in bad] == [b"rubbish"]
    await write(producer, broker, telemetry(30))
    task = asyncio.create_task(source.follow(sink))
    try:
        await write(producer, broker, telemetry(31))
        await until(lambda: len(seen) >= 32, changed)
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert [sequence for sequence, _ in seen] == list(range(32))
    assert all(clock.now_ms() - 60_000 < event <= clock.now_ms() for _, event in seen)


class Controller:
    """A controller process."""

    def __init__(self, process: asyncio.subprocess.Process, name: str) -> None:
        self.process = process
        self.name = name

    @classmethod
    async def start(
        cls, broker: Broker, config: Path, time_base: TimeBase, name: str = "controller-1"
    ) -> Controller:
        return cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "streams.controller",
                "--config",
                str(config),
                "--broker",
                broker.bootstrap,
                "--time-base",
                time_base.format(),
                "--prefix",
                broker.prefix,
                "--controller-id",
                name,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            ),
            name,
        )

    async def ready(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(40):
            said: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return said

    def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    yield path


async def test_a_killed_controller_goes_on_from_the_topics(
    broker: Broker, producer: AIOKafkaProducer, config: Path
) -> None:
    """A second life: a higher token, decisions counted on, one dead letter per poisoned place."""
    time_base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    first = await Controller.start(broker, config, time_base)
    try:
        hello = await first.ready()
        assert hello["ready"] is True
        await producer.send_and_wait(broker.name(STATUS), b"poison 1", key=b"p")
        await producer.send_and_wait(broker.name(TELEMETRY), b"poison 2", key=b"p")
        await read(broker, DECISIONS, lambda found: any(d.kind == "scale_out" for d in found))
        await read(broker, DEAD_LETTERS, _both_buried)
    finally:
        first.kill()
        await first.process.wait()
    second = await Controller.start(broker, config, time_base)
    try:
        again = await second.ready()
        assert again["leader_token"] > hello["leader_token"]
        rebuilt = await read(
            broker, DECISIONS, lambda found: any(d.kind == "rebuilt" for d in found)
        )
        numbers = [decision.number for decision in rebuilt]
        assert len(set(numbers)) == len(numbers), "numbers go on where they ended"
        assert not [d for d in rebuilt if d.kind == "scale_in"]
        second.process.terminate()
        async with asyncio.timeout(3):
            assert await second.process.wait() == 0
        letters = await read(broker, DEAD_LETTERS, _both_buried)
        places = [(d.topic, d.partition, d.offset) for d in letters]
        assert len(set(places)) == len(places), "one dead letter per place"
    finally:
        second.kill()
        await second.process.wait()


async def test_bad_input_is_one_line_and_exit_code_2(broker: Broker, tmp_path: Path) -> None:
    """No traceback, for a bad file as for a broker that is not there."""
    bad = tmp_path / "bad.yaml"
    bad.write_text(CONFIG.replace("ttft", "tfft"))
    good = tmp_path / "good.yaml"
    good.write_text(CONFIG)
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        nobody = Broker("none", f"127.0.0.1:{reserved.getsockname()[1]}", "x.")
        base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
        for where, config, named in ((broker, bad, "tfft"), (nobody, good, nobody.bootstrap)):
            started = await Controller.start(where, config, base)
            out, err = await started.process.communicate()
            assert started.process.returncode == 2
            assert named in json.loads(out)["error"]
            assert named in err.decode()
            assert len(err.decode().strip().splitlines()) == 1


def _both_buried(found: list[Any]) -> bool:
    return {letter.payload for letter in found} >= {_b64("poison 1"), _b64("poison 2")}


def _b64(text: str) -> str:
    return Poison("t", 0, 0, text.encode(), "").letter("r").payload


async def test_a_controller_ends_in_time_even_when_its_broker_is_gone(config: Path) -> None:
    """Clients that wait for a broker for ever do not keep the process."""
    embedded = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.broker", stdout=asyncio.subprocess.PIPE
    )
    assert embedded.stdout is not None
    bootstrap = json.loads(await embedded.stdout.readline())["bootstrap"]
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    started = await Controller.start(Broker("embedded", bootstrap, "shoal."), config, base)
    try:
        assert (await started.ready())["ready"] is True
        embedded.kill()
        await embedded.wait()
        started.process.terminate()
        async with asyncio.timeout(3):
            assert await started.process.wait() == 0
    finally:
        started.kill()
        if embedded.returncode is None:
            embedded.kill()


async def _lines(controller: Controller) -> dict[str, Any]:
    assert controller.process.stdout is not None
    async with asyncio.timeout(30):
        said: dict[str, Any] = json.loads(await controller.process.stdout.readline())
    return said


async def test_a_second_controller_stands_by_and_takes_over_from_a_stopped_one(
    broker: Broker, producer: AIOKafkaProducer, config: Path
) -> None:
    """It takes nothing from a leader in flow; from one that is stopped it takes over within 10 s,
    and nothing of what that one writes when it is resumed is the last word for longer than 2 s."""
    time_base = TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns())
    first = await Controller.start(broker, config, time_base, "first")
    second = None
    try:
        hello = await first.ready()
        second = await Controller.start(broker, config, time_base, "second")
        assert (await second.ready())["standby_of"] == "first"
        await read(broker, ASSIGNMENTS, lambda found: bool(found))
        os.kill(first.process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        took_over = await _lines(second)
        assert took_over["leader_token"] > hello["leader_token"]
        assert time.monotonic() - stopped_s < 10.0
        os.kill(first.process.pid, signal.SIGCONT)
        if broker.kind == "embedded":  # what a leader may have had on its way when it was stopped
            stale = Assignment("n-stale", "here/l4/owned", 9, hello["leader_token"], 0)
            await write(producer, broker, stale)
        resumed_s = time.monotonic()
        assert (await _lines(first))["standby_of"] == "second"
        found = await read(
            broker,
            ASSIGNMENTS,
            lambda found: {r.leader_token for r in _last(found)} == {took_over["leader_token"]},
        )
        assert time.monotonic() - resumed_s < 2.0 + 2.0
        assert len(_last(found)) >= 1
    finally:
        for controller in (first, second):
            if controller is not None:
                controller.kill()
                await controller.process.wait()


def _last(found: list[Any]) -> list[Any]:
    return list({record.node: record for record in found}.values())
