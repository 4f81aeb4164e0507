"""A real executor process with real engines and the embedded broker, at 50 times real time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from executors.kafka_client import KafkaClient
from topics.records import Assignment, DesiredInstance, ObservedInstance, Status
from topics.timebase import TimeBase

POOL = "r/h100/owned"


class Harness:
    """Broker, executor and a follower of its status."""

    def __init__(self, folder: Path, bootstrap: str, kafka: KafkaClient, leash: int | None) -> None:
        self.folder = folder
        self.kafka = kafka
        self.base = TimeBase(50.0, 1_700_000_000_000, time.monotonic_ns())
        self.statuses: dict[str, Status] = {}
        self.leash = leash
        self.config = folder / "node.json"
        self.config.write_text(
            json.dumps(
                {
                    "executor": "ex-1", "region": "r", "broker": bootstrap,
                    "state_dir": str(folder / "state"), "time_base": self.base.format(),
                    "nodes": [{"node": "n0", "pool": POOL, "gpu": "H100-SXM", "gpus": 4}],
                    "models": {"mini": {"source": "meta-llama/Llama-3.1-8B", "max_len": 8192}},
                    "engines": {"default": {"kind": "simulated", "startup_s": 20.0}},
                }
            )
        )  # fmt: skip
        kafka.follow(("status",), lambda _, key, record: self.statuses.__setitem__(key, record))

    async def start(self) -> subprocess.Popen[bytes]:
        env, fds = dict(os.environ), ()
        if self.leash is not None:
            env["SHOAL_SUPERVISION_FD"] = str(self.leash)
            fds = (self.leash,)
        argv = [sys.executable, "-m", "executors.node", "--config", str(self.config)]
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, pass_fds=fds)
        hello = await asyncio.to_thread(process.stdout.readline)
        assert json.loads(hello)["ready"] is True
        return process

    async def assign(self, generation: int, *wishes: DesiredInstance) -> None:
        now_ms = self.base.now_ms(time.monotonic_ns())
        record = Assignment("n0", POOL, generation, 1, now_ms, wishes)
        assert await self.kafka.publish("assignments", "n0", record)

    def get(self, instance: str) -> ObservedInstance | None:
        status = self.statuses.get("n0")
        found = [i for i in status.instances if i.instance == instance] if status else []
        return found[0] if found else None

    async def until(self, true: Callable[[], object], what: str) -> None:
        for _ in range(750):
            if true():
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"never {what}; {self.statuses}")

    async def until_state(self, instance: str, state: str) -> ObservedInstance:
        await self.until(lambda: (i := self.get(instance)) and i.state == state, f"{state}")
        found = self.get(instance)
        assert found is not None
        return found

    def pids(self) -> dict[str, int]:
        """Of the engines, as the executor wrote them down."""
        path = next((self.folder / "state").glob("n0-*.json"))
        rows = json.loads(path.read_text())["instances"]
        return {row["desired"]["instance"]: row["pid"] for row in rows if row["pid"]}


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    argv = [sys.executable, "-m", "streams.broker"]
    broker = subprocess.Popen(argv, stdout=subprocess.PIPE)
    hello = json.loads(await asyncio.to_thread(broker.stdout.readline))
    reader, writer = os.pipe()
    try:
        async with KafkaClient(hello["bootstrap"], "test") as kafka:
            while not kafka.connected:
                await asyncio.sleep(0.01)
            yield Harness(tmp_path, hello["bootstrap"], kafka, reader)
    finally:
        os.close(writer)  # engines and executors on the supervision pipe end by themselves
        os.close(reader)
        broker.terminate()
        broker.wait()
        broker.stdout.close()


def wish(name: str, *gpus: int, drain: bool = False) -> DesiredInstance:
    return DesiredInstance(name, "mini", "aggregated", "g:1", gpus, drain=drain)


def stop(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    code = process.wait(5.0)
    process.stdout.close()
    return code


def alive(pid: int) -> bool:
    try:
        return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False


async def test_an_instance_starts_serves_drains_and_stops(harness: Harness) -> None:
    """Ready after its start-up time; a drain waits for the request in flight; none is lost."""
    executor = await harness.start()
    await harness.until(lambda: "n0" in harness.statuses, "told of an idle node")
    await harness.assign(1, wish("a", 0))
    ready = await harness.until_state("a", "ready")
    assert ready.since_ms - ready.launched_ms >= 20_000
    async with aiohttp.ClientSession() as client:
        body = {"model": "mini", "prompt": "a", "max_tokens": 3000}
        job = asyncio.create_task(client.post(f"http://{ready.endpoint}/v1/completions", json=body))
        await asyncio.sleep(0.1)
        await harness.assign(2, wish("a", 0, drain=True))
        draining = await harness.until_state("a", "draining")
        assert draining.endpoint == ready.endpoint
        answer = await job
        assert (await answer.json())["usage"]["completion_tokens"] == 3000
    await harness.until_state("a", "stopped")
    await harness.assign(3)
    await harness.until(lambda: not harness.statuses["n0"].instances, "empty")
    assert stop(executor) == 0


async def test_a_killed_engine_is_replaced_and_a_killed_executor_takes_over(
    harness: Harness,
) -> None:
    """Restarts are counted; engines survive their executor, which adopts them, not a new one."""
    executor = await harness.start()
    await harness.assign(1, wish("a", 0), wish("b", 1, 2))
    await harness.until_state("a", "ready")
    await harness.until_state("b", "ready")
    os.kill(harness.pids()["a"], signal.SIGKILL)
    await harness.until(lambda: (i := harness.get("a")) and i.restarts == 1, "restarted")
    await harness.until_state("a", "ready")
    before = harness.pids()
    executor.kill()
    executor.wait()
    executor.stdout.close()
    assert all(alive(pid) for pid in before.values())
    harness.statuses.clear()
    executor = await harness.start()
    await harness.until_state("a", "ready")
    await harness.until_state("b", "ready")
    assert harness.pids() == before
    # An older generation than the one remembered changes nothing; a newer one does.
    await harness.assign(2, wish("b", 1, 2))
    await harness.until(lambda: harness.get("a") is None, "a gone")
    await harness.assign(1, wish("a", 0))
    await harness.assign(3, wish("b", 1, 2), wish("c", 0))
    await harness.until_state("c", "ready")
    assert harness.get("a") is None
    assert harness.pids()["b"] == before["b"]
    pids = harness.pids().values()
    assert stop(executor) == 0
    assert not any(alive(pid) for pid in pids), "on a leash, engines end with their executor"


async def test_what_cannot_be_launched_fails_with_its_reason(harness: Harness) -> None:
    """An unknown engine is given up after bounded attempts; its neighbour is untouched."""
    executor = await harness.start()
    bad = DesiredInstance("x", "mini", "aggregated", "g:1", (3,), engine="nope")
    await harness.assign(1, wish("a", 0), bad)
    failed = await harness.until_state("x", "failed")
    assert "engine nope is not configured here" in failed.reason
    assert (await harness.until_state("a", "ready")).restarts == 0
    assert stop(executor) == 0


async def test_a_poison_record_goes_to_the_dead_letters_and_stops_nothing(
    harness: Harness,
) -> None:
    """What cannot be decoded is buried with its reason; the next assignment is followed."""
    letters = []
    harness.kafka.follow(("dead-letters",), lambda _t, _k, record: letters.append(record))
    executor = await harness.start()
    # The producer underneath: a KafkaClient itself writes nothing that a reader would refuse.
    await harness.kafka._producer.send_and_wait("shoal.assignments", b"{bad", key=b"n0")
    await harness.assign(1, wish("a", 0))
    await harness.until_state("a", "ready")
    await harness.until(lambda: letters, "buried")
    assert (letters[0].topic, letters[0].reader) == ("assignments", "ex-1")
    assert stop(executor) == 0
