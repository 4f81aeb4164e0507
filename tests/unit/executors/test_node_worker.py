"""An executor keeps its state and engines if its folder or the executor itself fails."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import aiohttp
import pytest

from executors.engines.engine_protocol import LaunchLine
from executors.node.engine_environment import LaunchTag
from executors.node.engine_ports import EnginePorts
from executors.node.engine_probes import ProbeTimeouts
from executors.node.engine_processes import EngineProcesses, reach_process
from executors.node.executor import Executor
from executors.node.executor_config import ExecutorConfig, parse_config
from executors.node.executor_metrics import Metrics
from executors.node.executor_process import run
from executors.node.node_lock import NodeLock
from executors.node.node_worker import NodeWorker, heartbeat_s, rules_for
from executors.node.os_processes import start_engine
from executors.node.probe_schedule import ProbeSchedule
from executors.node.reconcile import is_expired as expired_at
from executors.node.state_store import StateFolderUnusable, StateStore
from topics.fleet import Assignment, DesiredInstance, Status
from topics.keys import Keys
from topics.storage.durable_files import DRAFT

POOL = "r/p/owned"
WISH = DesiredInstance("a", "m", "aggregated", "g", (0,))


def config(folder: Path, speed: float = 1.0) -> ExecutorConfig:
    node = {"node": "n0", "pool": POOL, "gpu": "H100-SXM", "gpus": 1}
    return parse_config(
        {
            "executor": "ex", "region": "r", "broker": "127.0.0.1:9", "state_dir": str(folder),
            "time_base": f"{speed},1700000000000,0", "nodes": [node], "models": {}, "engines": {},
        }
    )  # fmt: skip


@dataclass
class FakeBroker:
    """The values that an executor reads from its broker client."""

    highest_token: int | None = 5
    forged: int = 0
    caught_up: bool = True


class Bench:
    """The worker of one node without a broker, and the statuses that it published."""

    def __init__(self, folder: Path, client: aiohttp.ClientSession, speed: float = 1.0) -> None:
        setup, self.store = config(folder, speed), StateStore(folder)
        self.speed, self.takes = speed, True
        self.metrics, self.broker = Metrics(), FakeBroker()
        self.told: list[Status] = []
        self.node_lock = NodeLock("n0", "b1", "here")
        asking = ProbeSchedule({}, client, reach_process("127.0.0.1"), ProbeTimeouts())
        engines = EngineProcesses(
            setup.nodes[0], setup, EnginePorts("127.0.0.1"), self.store, asking, self.metrics
        )
        self.worker = NodeWorker(
            setup.nodes[0], setup, engines, self.node_lock, self.metrics, self.publish,
            rules_for(setup),
        )  # fmt: skip
        workers = {"n0": self.worker}
        self.executor = Executor(setup, self.broker, workers, self.metrics)

    async def publish(self, status: Status) -> bool:
        self.told.append(status)
        return self.takes

    async def steps(self, from_s: float, until_s: float) -> list[float]:
        """Run ten steps per real second. Returns the times of published
        statuses, in real seconds.
        """
        told_s = []
        for tenth in range(round(from_s * 10), round(until_s * 10)):
            count, now_s = len(self.told), tenth / 10
            self.worker.step(int(now_s * self.speed * 1000), now_s, set())
            await asyncio.sleep(0)  # no time passes, but the status is sent
            told_s += [now_s] * (len(self.told) - count)
        return told_s

    def refused(self, why: str) -> int:
        return self.worker.state.refused.get(why, 0)


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def want(generation: int, *wishes: DesiredInstance, token: int = 5) -> Assignment:
    return Assignment("n0", POOL, generation, token, 0, wishes)


async def test_node_state_is_written_once_the_disk_has_space_again(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """Otherwise a restarted executor would not know the engines that started while the disk was
    full."""
    bench = Bench(tmp_path, client)
    in_the_way = bench.store.path("n0").with_name(bench.store.path("n0").name + DRAFT)
    in_the_way.mkdir()
    bench.worker.accept(want(1, DesiredInstance("a", "m", "aggregated", "g", (0,), drain=True)))
    bench.worker.step(1_000, 1.0, set())
    assert "cannot write" in bench.store.fault
    in_the_way.rmdir()
    bench.worker.step(1_100, 1.1, set())
    assert not bench.store.path("n0").exists(), "not at every step"
    bench.worker.step(10_000, 10.0, set())
    assert bench.store.path("n0").exists() and not bench.store.fault
    await bench.worker.close()


async def test_a_lost_node_reports_nothing_until_it_is_back(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    bench = Bench(tmp_path, client)
    assert await bench.steps(0.0, 10.1), "a node without instances reports too"
    bench.worker.set_lost(True)
    assert await bench.steps(11.0, 60.0) == []
    bench.worker.set_lost(False)
    assert await bench.steps(60.0, 61.0)
    await bench.worker.close()


def test_a_state_folder_in_use_or_unusable_is_refused(tmp_path: Path) -> None:
    """The error names the folder, the fault and the owner."""
    first = StateStore(tmp_path / "state")
    first.open()
    with pytest.raises(StateFolderUnusable, match=f"another executor .pid {os.getpid()}"):
        StateStore(tmp_path / "state").open()
    first.close()
    second = StateStore(tmp_path / "state")
    second.open()
    second.close()
    (tmp_path / "file").touch()
    with pytest.raises(StateFolderUnusable, match="--state-dir"):
        StateStore(tmp_path / "file").open()


async def test_an_assignment_waits_until_its_leader_claims_the_token(
    tmp_path: Path, client: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An assignment with a token above every claim is refused after a while, unless its token is
    claimed in time. Meanwhile the executor follows the present leader.
    """
    now_s = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now_s[0])
    bench = Bench(tmp_path, client)
    bench.node_lock.claimed = True

    def deliver(topic: str, key: str, record: Assignment) -> None:
        bench.executor.on_record(topic, key, record, 0)

    deliver("assignments", "n0", want(9, token=10**12))
    deliver("assignments", "n0", want(1, token=6))
    deliver("assignments", "n0", want(1, WISH))
    bench.executor.on_leadership()
    assert bench.worker.state.assignment == want(1, WISH)
    bench.broker.highest_token = 6
    bench.executor.on_leadership()
    assert bench.worker.state.assignment == want(1, token=6)
    now_s[0] = 60.0
    bench.executor.on_leadership()
    assert bench.refused("unclaimed token") == 1
    deliver("assignments", "n0", want(3, token=4))
    bench.executor.on_leadership()
    assert bench.refused("leader token") == 1
    deliver("assignments", "n0", Assignment("n1", POOL, 3, 6, 0))
    assert bench.refused("node") == 1


@pytest.mark.parametrize(("leaders", "known"), [(300, False), (3000, True)])
async def test_a_restarted_executor_follows_the_last_of_many_leaders(
    tmp_path: Path, client: aiohttp.ClientSession, leaders: int, known: bool
) -> None:
    """It reads the assignments of many leaders, in some cases before it knows
    the present leader.
    """
    bench = Bench(tmp_path, client)
    bench.broker.caught_up = False
    bench.broker.highest_token = leaders if known else None
    for token in range(1, leaders + 1):
        bench.executor.on_record("assignments", "n0", want(1, token=token), 0)
    bench.broker.highest_token, bench.broker.caught_up = leaders, True
    bench.node_lock.claimed = True
    bench.executor.on_leadership()
    assert bench.worker.state.assignment is not None
    assert bench.worker.state.assignment.leader_token == leaders
    await bench.worker.close()


@pytest.mark.parametrize("ours_ahead_h", [-1, 0, 1])
async def test_the_validity_of_an_assignment_does_not_depend_on_host_clocks(
    ours_ahead_h: int,
    tmp_path: Path,
    client: aiohttp.ClientSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An assignment expires 15 minutes after the broker appended it, whatever the clocks of leader,
    broker and this host show. A later assignment extends this; a copy does not.
    """
    mono_ms = [0]
    monkeypatch.setattr("time.monotonic_ns", lambda: mono_ms[0] * 1_000_000)
    bench = Bench(tmp_path, client)
    start_ms = 1_700_000_000_000  # by the clock of this host
    leader_ms, broker_ms = start_ms - ours_ahead_h * 3_600_000, start_ms + 7_200_000

    def expired(after_ms: int) -> bool:
        return expired_at(bench.worker.state, start_ms + after_ms)

    own = Status("n0", POOL, "ex", 0, start_ms, boot="b1", place="here")
    mono_ms[0] = 50
    bench.executor.on_record("status", "n0", own, broker_ms + 20)
    said = replace(want(1, WISH), said_ms=leader_ms, valid_ms=900_000)
    mono_ms[0] = 60_000  # the record is read a minute after its append
    for _ in range(2):
        bench.executor.on_record("assignments", "n0", said, broker_ms)
        bench.executor.on_leadership()
    assert not expired(899_900) and expired(900_100)
    mono_ms[0] = 400_000
    again = replace(said, said_ms=leader_ms + 300_000)
    bench.executor.on_record("assignments", "n0", again, broker_ms + 300_000)
    bench.executor.on_leadership()
    assert not expired(1_199_900)
    await bench.worker.close()


async def test_a_node_that_another_executor_holds_is_not_touched(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """While the other executor reports, this one accepts no assignment and publishes no status. 30
    s of silence end that.
    """
    bench = Bench(tmp_path, client)
    now_ms = 1_700_000_000_000
    other = Status("n0", POOL, "ex-2", 1, now_ms, boot="b2", place="there")
    bench.node_lock.on_status(other, now_ms, now_ms, live=True)
    bench.executor.on_record("assignments", "n0", want(1, WISH), 0)
    bench.executor.on_leadership()
    bench.worker.step(now_ms + 1, 1.0, set())
    await asyncio.sleep(0)
    assert bench.worker.state.assignment is None
    assert bench.told == []
    assert "executor ex-2 (there) holds n0" in bench.node_lock.fault(now_ms + 1)
    bench.worker.step(now_ms + 31_000, 2.0, set())
    await asyncio.sleep(0)
    bench.node_lock.on_status(bench.told[0], now_ms + 31_100, now_ms + 31_100, live=True)
    bench.executor.on_leadership()
    assert bench.worker.state.assignment == want(1, WISH)
    await bench.worker.close()


async def test_engines_keep_running_if_their_executor_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds under a supervisor too. Only a signal to the executor stops its engines."""
    reader, writer = os.pipe()
    monkeypatch.setenv("SHOAL_SUPERVISION_FD", str(reader))
    line = LaunchLine((sys.executable, "-c", "import time; time.sleep(60)"))
    tag = LaunchTag("l1", "n0", WISH, (20001,), 0)
    engine = start_engine(line, tag, os.environ, str(tmp_path), tmp_path / "log")

    async def fails(self: Executor, end: asyncio.Event) -> None:
        self.workers["n0"].engines.processes["a"] = engine
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Executor, "run", fails)
    try:
        with pytest.raises(RuntimeError):
            await run(config(tmp_path), Keys(), StateStore(tmp_path))
        assert engine.poll() is None
    finally:
        engine.kill()
        assert engine.child is not None
        engine.child.wait()
        os.close(reader)
        os.close(writer)


@pytest.mark.parametrize("speed", [1.0, 5.0, 30.0])
async def test_nodes_of_one_process_publish_at_the_same_times(
    tmp_path: Path, client: aiohttp.ClientSession, speed: float
) -> None:
    """Their statuses are then sent in one batch."""
    beats = []
    for number, first_s in enumerate((100.0, 100.7, 101.4)):
        (tmp_path / str(number)).mkdir()
        bench = Bench(tmp_path / str(number), client, speed)
        told_s = await bench.steps(first_s, 160.0)
        assert told_s[0] == first_s
        beats.append([at_s for at_s in told_s if at_s > 120.0])
        await bench.worker.close()
    assert beats[0] == beats[1] == beats[2]
    gaps = [later - at for at, later in zip(beats[0], beats[0][1:], strict=False)]
    assert len(gaps) >= 2 and max(gaps) < heartbeat_s(True, speed) + 0.2


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 100.0, 600.0])
def test_a_node_reports_several_times_within_the_silence_limit(speed: float) -> None:
    """The controller's limit is 15 s, but at least 5 real seconds. For idle nodes it is three times
    that.
    """
    silent_s = max(15.0 / speed, 5.0)
    assert 4.0 * heartbeat_s(False, speed) < silent_s
    assert 4.0 * heartbeat_s(True, speed) < 3.0 * silent_s


async def test_a_status_that_the_broker_refused_is_sent_again_soon(
    tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    bench = Bench(tmp_path, client)
    await bench.steps(100.0, 100.5)
    bench.takes = False
    tried_s = await bench.steps(109.8, 113.5)
    assert len(tried_s) >= 3
    bench.takes = True
    assert len(await bench.steps(113.5, 119.5)) == 1
    await bench.worker.close()
