"""Processes killed during a run: requests continue or end with an error, and lost processes
restart. Two of the runs then end by a signal under load.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import aiohttp
import pytest

from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import CONTROLLER, Proc, Run, served_by
from tests.hang_limit import HANG_S

SPEED = 20
LOAD_S = 20  # real seconds after the fleet is ready
ALONE_S = 30.0  # ten minutes at speed 20


class Started:
    """A run for each scenario. Two runs are made at a time, because each needs about one core."""

    def __init__(self, start: Start, pool: ThreadPoolExecutor) -> None:
        def begin(scenario: Callable[[Run], None], load_s: int) -> Future[None]:
            return pool.submit(lambda: scenario(start(trace_s=SPEED * load_s)))

        self.engine = begin(killed_engine, LOAD_S)
        self.controller = begin(killed_controller, 180)
        self.alone = begin(without_control_plane, 180)
        self.broker = begin(killed_broker, LOAD_S // 2)


@pytest.fixture(scope="module")
def started(start: Start) -> Iterator[Started]:
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield Started(start, pool)


def test_a_killed_engine(started: Started) -> None:
    """Its answers end with an error at once. The other engine continues, and a
    new engine serves.
    """
    started.engine.result()


def test_a_killed_controller(started: Started) -> None:
    """Serving continues without a controller. The next one resumes from the topics and changes
    nothing. Ctrl-C ends the run.
    """
    started.controller.result()


def test_a_killed_broker(started: Started) -> None:
    """Serving continues with the last routes, and the last lines name the loss."""
    started.broker.result()


def test_ten_minutes_without_the_control_plane(started: Started) -> None:
    """Controller and broker are silent for ten minutes of domain time, and no request fails.
    SIGTERM ends the run.
    """
    started.alone.result()


async def long_answer(url: str, begun: asyncio.Semaphore) -> bytes:
    """A streamed answer that takes many real seconds. `begun` is released at the first bytes."""
    body = {
        "model": "mini", "prompt": "a a a", "max_tokens": 8000, "ignore_eos": True, "stream": True,
    }  # fmt: skip
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{url}/v1/completions", json=body) as answer,
    ):
        got = await answer.content.readany()
        begun.release()
        while block := await answer.content.readany():
            got += block
            if b"[DONE]" in got[-64:]:
                break
        return got


async def answers_cut_by(url: str, victim: Proc) -> list[bytes]:
    """The parts of cut answers, of four long answers on two engines.

    The end of `victim` cuts its answers.
    """
    begun = asyncio.Semaphore(0)
    async with asyncio.timeout(HANG_S):
        answers = [asyncio.create_task(long_answer(url, begun)) for _ in range(4)]
        for _ in answers:
            await begun.acquire()
    os.kill(victim.pid, signal.SIGKILL)
    cut, going_on = await asyncio.wait(answers, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
    for task in going_on:
        task.cancel()
    await asyncio.gather(*going_on, return_exceptions=True)
    assert going_on, "the answers of the other engine should go on"
    return [task.result() for task in cut]


def killed_engine(run: Run) -> None:
    url = run.url()
    old = run.until(lambda: run.serving(), "two engines that serve")
    cut = asyncio.run(answers_cut_by(url, old[0]))
    assert cut, "no answer ended although its engine is gone"
    for answer in cut:
        events = answer.strip().split(b"\n\n")
        assert b'"error"' in events[-2]
        assert events[-1] == b"data: [DONE]"
    new = run.until(lambda: run.serving(), "engine that serves in its place")
    assert {engine.pid for engine in new} - {engine.pid for engine in old}
    assert run.end() == 0
    requests = run.summary["requests"]
    assert requests["sent"] == requests["served"] + requests["failed"] + requests["dropped"]
    # Of 20 requests per real second, only the present answers of the engine are lost.
    assert requests["failed"] <= 20
    assert requests["dropped"] == 0
    assert run.processes() == []


def killed_controller(run: Run) -> None:
    run.url()
    engines = run.until(lambda: run.serving(), "two engines that serve")
    (controller,) = run.processes(CONTROLLER)
    told = len(run.lines)
    os.kill(controller.pid, signal.SIGKILL)
    run.line(r"^! down: controller; starting again", after=told)
    run.line(r"^\+[\d:]+ controller was killed \(SIGKILL\); starting it again", after=told)
    run.until(
        lambda: {again.pid for again in run.processes(CONTROLLER)} - {controller.pid},
        "controller in its place",
    )
    run.line(r"^\+[\d:]+ controller is back", after=told)
    run.line(r"^\+[\d:]+ rebuilt from the topics: 2 instances of 1 model ", after=told)
    assert {engine.pid for engine in run.serving()} == {engine.pid for engine in engines}
    summary = run.stop(signal.SIGINT)
    assert summary["restarts"] == {"controller": 1}
    no_change = ("hold", "infeasible")
    changes = {kind: n for kind, n in summary["decisions"].items() if kind not in no_change}
    assert changes == {"rebuilt": 1, "scale_out": 1}, "the new controller knew the fleet"


def killed_broker(run: Run) -> None:
    run.url()
    run.until(run.serving, "two engines that serve")
    (broker,) = run.processes("streams.broker")
    os.kill(broker.pid, signal.SIGKILL)
    run.line(r"lost: broker was killed \(SIGKILL\)")
    assert run.end() == 1
    requests = run.summary["requests"]
    assert requests["served"] >= 0.99 * requests["sent"] > 0
    said, kept = run.errors.splitlines()
    assert said == "shoal: lost under way: broker was killed (SIGKILL)"
    logs = Path(kept.removeprefix("shoal: the logs of this run are in "))
    assert logs.parent == run.temporary
    assert {"controller.log", "gateway.log"} <= {path.name for path in logs.iterdir()}
    assert run.processes() == []


def without_control_plane(run: Run) -> None:
    run.url()
    engines = run.until(run.serving, "two engines that serve")
    silent = [*run.processes(CONTROLLER), *run.processes("streams.broker")]
    assert len(silent) == 2
    for process in silent:
        os.kill(process.pid, signal.SIGSTOP)
    try:
        before = sum(map(served_by, engines))
        time.sleep(ALONE_S)
        run.until(
            lambda: sum(map(served_by, engines)) - before >= 0.9 * ALONE_S * SPEED,
            "a request per domain second that is served",
        )
    finally:
        for process in silent:
            os.kill(process.pid, signal.SIGCONT)
    assert run.stop(signal.SIGTERM)["requests"]["sent"] > ALONE_S * SPEED
