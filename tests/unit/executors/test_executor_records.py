"""Records that an executor holds back, drops or ignores, and the faults that it logs."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from executors.node import reclaim_hook
from executors.node.executor import Executor
from tests.unit.executors.test_worker_with_engines import NOW, POOL, WISH, Bench, FakeBroker
from topics.fleet import Assignment, Status


class Clock:
    """The monotonic clock, in s."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(time, "monotonic_ns", lambda: round(self.now_s * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def made(bench: Bench, **changes: Any) -> tuple[Executor, FakeBroker]:
    """An executor that holds its node."""
    bench.node_lock.claimed = True
    broker = FakeBroker()
    for name, value in changes.items():
        setattr(broker, name, value)
    return Executor(bench.config, broker, {"n0": bench.worker}, bench.metrics), broker


def want(generation: int, token: int = 5) -> Assignment:
    return Assignment("n0", POOL, generation, token, 0)


def current(bench: Bench) -> tuple[int, int] | None:
    """(token, generation) of the present assignment."""
    found = bench.worker.state.assignment
    return (found.leader_token, found.generation) if found else None


def send(executor: Executor, *records: Assignment) -> None:
    for one in records:
        executor.on_record("assignments", "n0", one, 0)


async def test_the_highest_generation_of_each_leader_waits(clock: Clock) -> None:
    """A later record with the same generation has a later expiry."""
    bench = Bench()
    executor, _ = made(bench)
    send(executor, want(2), want(1), want(9, token=4))
    executor.on_leadership()
    assert current(bench) == (5, 2) and bench.worker.state.refused == {}
    send(executor, want(3), replace(want(3), said_ms=7))
    executor.on_leadership()
    assert bench.worker.state.assignment == replace(want(3), said_ms=7)


@pytest.mark.parametrize("unready", [{"caught_up": False}, {"highest_token": None}])
async def test_assignments_wait_for_old_records_and_a_claim(
    clock: Clock, unready: dict[str, Any]
) -> None:
    bench = Bench()
    executor, broker = made(bench, **unready)
    send(executor, want(1))
    executor.on_leadership()
    assert current(bench) is None
    broker.caught_up, broker.highest_token = True, 5
    executor.on_leadership()
    assert current(bench) == (5, 1)
    executor.on_leadership()
    assert bench.worker.state.refused == {}, "each assignment is dispatched once"


async def test_an_assignment_is_refused_if_nobody_claims_its_token_in_10_s(clock: Clock) -> None:
    bench = Bench()
    executor, broker = made(bench)
    send(executor, want(1, token=6))
    clock.now_s = 110.0
    executor.on_leadership()
    assert current(bench) is None and bench.worker.state.refused == {}
    clock.now_s = 110.1
    executor.on_leadership()
    assert bench.worker.state.refused == {"unclaimed token": 1}
    broker.highest_token = 6
    executor.on_leadership()
    assert current(bench) is None


async def test_a_thousand_leaders_may_have_pending_assignments(clock: Clock) -> None:
    """Beyond that, the lowest claimed token is dropped, or else the highest one."""
    bench = Bench()
    executor, broker = made(bench, caught_up=False)
    broker.highest_token = 2
    send(executor, *(want(1, token) for token in range(1, 1001)))
    assert set(executor._pending["n0"]) == set(range(1, 1001))
    send(executor, want(1, 1001))
    assert set(executor._pending["n0"]) == set(range(2, 1002))
    send(executor, want(1, 1))
    assert set(executor._pending["n0"]) == set(range(2, 1002))
    broker.highest_token = None
    send(executor, want(1, 1))
    assert set(executor._pending["n0"]) == set(range(1, 1001))


async def test_a_deleted_assignment_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    executor, _ = made(bench)
    await bench.ready(WISH)
    for topic, key in (("assignments", "n0"), ("assignments", "n1"), ("status", "n0")):
        executor.on_tombstone(topic, key)
    assert [record.getMessage() for record in caplog.records] == [
        "n0: assignment deleted; existing instances keep running"
    ]
    assert await bench.step(3.0) == []


async def test_records_of_other_nodes_are_ignored(clock: Clock) -> None:
    bench = Bench()
    executor, _ = made(bench)
    other = replace(want(1), node="n1")
    executor.on_record("assignments", "n1", other, 0)
    executor.on_record("status", "n1", Status("n1", POOL, "x", 0, NOW, boot="b9"), 0)
    executor.on_record("leadership", "n0", SimpleNamespace(node="n0"), 0)
    executor.on_leadership()
    assert current(bench) is None and bench.worker.state.refused == {}
    executor.on_record("assignments", "n0", other, 0)
    assert bench.worker.state.refused == {"node": 1}


async def test_a_contested_node_is_logged_once_a_minute(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    executor, _ = made(bench)
    bench.node_lock.claimed = False
    now_ms = executor._now_ms()
    counts = []
    send(executor, want(1))
    for now_s in (100.0, 100.0, 159.9, 160.0, 219.9, 220.0):
        clock.now_s = now_s
        bench.node_lock.other_until_ms = now_ms + 10**9
        bench.node_lock.other = Status("n0", POOL, "ex-2", 1, NOW, boot="b2", place="there")
        executor.on_leadership()
        counts.append(len(caplog.records))
    assert counts == [1, 1, 1, 2, 2, 3] and current(bench) is None
    bench.node_lock.claimed = True
    executor.on_leadership()
    assert current(bench) == (5, 1) and len(caplog.records) == 3


async def test_scripted_faults_are_applied_to_each_node(tmp_path: Path) -> None:
    bench = Bench()
    path = tmp_path / "faults.json"
    bench.config = replace(bench.config, faults_file=str(path))
    told: list[tuple[str, str]] = []
    executor = Executor(
        bench.config, FakeBroker(), {"n0": bench.worker}, bench.metrics,
        lambda node, fault: told.append((node, fault)),
    )  # fmt: skip
    path.write_bytes(orjson.dumps({"failing": [POOL], "lost": ["n0"]}))
    executor._apply_faults(NOW)
    executor._apply_faults(NOW)
    assert told == [("n0", f"launches on {POOL} fail")]
    assert bench.engines.calls == ["kill all"]
    assert await bench.step(1.0) == [] and bench.told == []
    quiet = Executor(bench.config, FakeBroker(), {"n0": bench.worker}, bench.metrics)
    quiet._apply_faults(NOW)


async def test_notices_are_polled_while_the_executor_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[tuple[Any, ...]] = []

    async def poll(command: Any, node: str, on_notice: Any) -> None:
        polls.append((command, node, on_notice))
        try:
            await asyncio.Event().wait()
        finally:
            polls.append(("ended", node))

    monkeypatch.setattr(reclaim_hook, "poll_notices", poll)
    for command in (("hook",), ()):
        polls.clear()
        bench = Bench()
        bench.config = replace(bench.config, reclaim_command=command)
        executor, _ = made(bench)
        end = asyncio.Event()
        running = asyncio.create_task(executor.run(end))
        while not bench.told:
            await asyncio.sleep(0)
        end.set()
        await running
        started = (("hook",), "n0", bench.worker.on_reclaim_notice)
        assert polls == ([started, ("ended", "n0")] if command else [])


async def test_nothing_is_reported_if_no_engine_was_adopted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    executor, _ = made(bench)
    bench.engines.restore = lambda state: (state, 0)  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO):
        executor.restore()
    assert caplog.records == []


async def test_no_port_of_another_node_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of one process share its block of ports."""
    first, second = Bench(), Bench()
    await first.ready(WISH)
    second.want(WISH)
    workers = {"n0": first.worker, "n1": second.worker}
    executor = Executor(first.config, FakeBroker(), workers, first.metrics)
    end = asyncio.Event()
    running = asyncio.create_task(executor.run(end))
    while not second.worker.state.instances:
        await asyncio.sleep(0)
    end.set()
    await running
    assert second.worker.ports_used == {101}
