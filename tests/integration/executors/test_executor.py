"""A real executor process with simulated engines and the embedded broker, at 50 times real time."""

from __future__ import annotations

import asyncio
import os
import signal

import aiohttp

from tests.integration.executors.conftest import Harness, alive, stop, wish
from topics.fleet import DesiredInstance


async def test_an_instance_starts_serves_drains_and_stops(harness: Harness) -> None:
    """The instance is ready after its start-up time. A drain waits for the request in flight, and
    no request is lost.
    """
    executor = await harness.start(leash=True)
    await harness.until(lambda: harness.status, "told of an idle node")
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
    await harness.until(lambda: not harness.status.instances, "empty")
    assert stop(executor) == 0


async def test_a_killed_engine_restarts_and_engines_survive_a_killed_executor(
    harness: Harness,
) -> None:
    """Restarts are counted. The next executor adopts the running engines."""
    executor = await harness.start(leash=True)
    await harness.assign(1, wish("a", 0), wish("b", 1, 2))
    await harness.until_state("a", "ready")
    await harness.until_state("b", "ready")
    os.kill(harness.pids()["a"][0], signal.SIGKILL)
    await harness.until(lambda: (i := harness.get("a")) and i.restarts == 1, "restarted")
    await harness.until_state("a", "ready")
    before = harness.pids()
    executor.kill()
    executor.wait()
    assert all(alive(pid) for pids in before.values() for pid in pids)
    harness.status = None
    executor = await harness.start(leash=True)
    await harness.until_state("a", "ready")
    await harness.until_state("b", "ready")
    assert harness.pids() == before
    # An older generation than the stored one changes nothing. A newer one does.
    await harness.assign(2, wish("b", 1, 2))
    await harness.until(lambda: harness.get("a") is None, "a gone")
    await harness.assign(1, wish("a", 0))
    await harness.assign(3, wish("b", 1, 2), wish("c", 0))
    await harness.until_state("c", "ready")
    assert harness.get("a") is None
    assert harness.pids()["b"] == before["b"]
    pids = [pid for pids in harness.pids().values() for pid in pids]
    assert stop(executor) == 0
    assert not any(alive(pid) for pid in pids), "supervised engines end with their executor"


async def test_a_sleeping_engine_serves_another_instance_and_survives_its_executor(
    harness: Harness,
) -> None:
    """The process serves much sooner than after a start. After the executor is killed, the next one
    knows the process under its new name.
    """
    engines = {"default": {"kind": "simulated", "startup_s": 60.0, "sleep": True}}
    config = harness.config(engines=engines)
    executor = await harness.start(config, leash=True)
    await harness.assign(1, wish("a", 0), wish("b", 1))
    await harness.until_ready("a", "b")
    before = harness.pids()
    await harness.assign(2, wish("a", 0, drain=True), wish("b", 1))
    await harness.until_state("a", "asleep")
    await harness.assign(3, wish("b", 1), wish("c", 0))
    woken = await harness.until_state("c", "ready")
    assert woken.since_ms - woken.launched_ms < 60_000
    assert harness.get("a") is None
    assert harness.metric("shoal_executor_wake_seconds_count") == 1
    assert harness.pids() == before
    executor.kill()
    executor.wait()
    harness.status = None
    executor = await harness.start(config, leash=True)
    await harness.until_ready("b", "c")
    assert harness.pids() == before
    # Its replacement gets the GPU once the sleeping engine is gone.
    await harness.assign(4, wish("b", 1), wish("c", 0, drain=True))
    await harness.until_state("c", "asleep")
    await harness.assign(5, wish("b", 1), wish("d", 0, 2))
    await harness.until_ready("d")
    assert set(harness.pids()) == {"b", "d"}
    assert stop(executor) == 0


async def test_an_instance_that_cannot_launch_fails_with_its_reason(harness: Harness) -> None:
    """An unknown engine fails after a limited number of attempts. The other instance is not
    affected.
    """
    executor = await harness.start(leash=True)
    bad = DesiredInstance("x", "mini", "aggregated", "g:1", (3,), engine="nope")
    await harness.assign(1, wish("a", 0), bad)
    failed = await harness.until_state("x", "failed")
    assert "engine nope is not configured here" in failed.reason
    assert (await harness.until_state("a", "ready")).restarts == 0
    assert stop(executor) == 0


async def test_an_undecodable_record_does_not_stop_the_executor(harness: Harness) -> None:
    """It is ignored, and the next assignment is applied. The controller writes the dead letter, so
    each bad record has only one.
    """
    executor = await harness.start(leash=True)
    # The inner producer, because KafkaClient itself writes only records that readers accept.
    await harness.kafka._producer.send_and_wait(
        "shoal.assignments", b"{bad", key=harness.node.encode()
    )
    await harness.assign(1, wish("a", 0))
    await harness.until_state("a", "ready")
    assert stop(executor) == 0
