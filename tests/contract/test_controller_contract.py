"""The controller process with both brokers: refusals, restarts, a standby, and shutdown."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from streams.invalid_records import Poison
from tests.contract.brokers import (
    Broker,
    read,
    write,
)
from tests.contract.controllers import CONFIG, Controller
from tests.hang_limit import HANG_S
from topics.time_base import TimeBase
from topics.topic_table import (
    ASSIGNMENTS,
    DEAD_LETTERS,
    DECISIONS,
    STATUS,
    TELEMETRY,
)


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "shoal.yaml"
    path.write_text(CONFIG)
    yield path


async def test_a_restarted_controller_continues_from_the_topics(
    broker: Broker, producer: AIOKafkaProducer, config: Path
) -> None:
    """It has a higher token, continues the decision numbers, and writes one dead letter per invalid
    record.
    """
    time_base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    first = await Controller.start(broker, config, time_base)
    try:
        hello = await first.says()
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
        again = await second.says()
        assert again["leader_token"] > hello["leader_token"]
        rebuilt = await read(
            broker, DECISIONS, lambda found: any(d.kind == "rebuilt" for d in found)
        )
        numbers = [decision.number for decision in rebuilt]
        assert len(set(numbers)) == len(numbers), "numbers go on where they ended"
        assert not [d for d in rebuilt if d.kind == "scale_in"]
        second.process.terminate()
        async with asyncio.timeout(HANG_S):
            assert await second.process.wait() == 0
        letters = await read(broker, DEAD_LETTERS, _both_buried)
        places = [(d.topic, d.partition, d.offset) for d in letters]
        assert len(set(places)) == len(places), "one dead letter per place"
    finally:
        second.kill()
        await second.process.wait()


async def test_bad_input_gives_one_line_and_exit_code_2(broker: Broker, tmp_path: Path) -> None:
    """Neither a bad file nor an unreachable broker gives a traceback."""
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
            lines = err.decode().strip().splitlines()
            assert len([line for line in lines if " WARNING " not in line]) == 1


def _both_buried(found: list[Any]) -> bool:
    return {letter.payload for letter in found} >= {_b64("poison 1"), _b64("poison 2")}


def _b64(text: str) -> str:
    return Poison("t", 0, 0, text.encode(), "").letter("r").payload


async def test_a_controller_ends_in_time_even_when_its_broker_is_gone(config: Path) -> None:
    """Kafka clients that wait forever for a broker do not keep the process alive."""
    embedded = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.broker", stdout=asyncio.subprocess.PIPE
    )
    assert embedded.stdout is not None
    bootstrap = json.loads(await embedded.stdout.readline())["bootstrap"]
    base = TimeBase(10.0, 1_700_000_000_000, time.monotonic_ns())
    started = await Controller.start(Broker("embedded", bootstrap, "shoal."), config, base)
    try:
        assert (await started.says())["ready"] is True
        embedded.kill()
        await embedded.wait()
        started.process.terminate()
        async with asyncio.timeout(HANG_S):
            assert await started.process.wait() == 0
    finally:
        started.kill()
        if embedded.returncode is None:
            embedded.kill()


async def test_a_second_controller_stands_by_and_takes_over_from_a_suspended_one(
    broker: Broker, producer: AIOKafkaProducer, config: Path
) -> None:
    """It takes nothing from a working leader, and takes over from a suspended one within 10 s.
    Records that the old leader writes after it resumes are the latest for at most 2 s.
    """
    time_base = TimeBase(1.0, 1_700_000_000_000, time.monotonic_ns())
    first = await Controller.start(broker, config, time_base, "first")
    second = None
    try:
        hello = await first.says()
        second = await Controller.start(broker, config, time_base, "second")
        assert (await second.says())["standby_of"] == "first"
        assigned = (await read(broker, ASSIGNMENTS, lambda found: bool(found)))[0]
        os.kill(first.process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        took_over = await second.says()
        assert took_over["leader_token"] > hello["leader_token"]
        assert time.monotonic() - stopped_s < 60.0
        os.kill(first.process.pid, signal.SIGCONT)
        if broker.kind == "embedded":  # records that the leader was sending when it was suspended
            stale = replace(assigned, generation=assigned.generation + 9)
            await write(producer, broker, stale)
        resumed_s = time.monotonic()
        assert (await first.says())["standby_of"] == "second"
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
