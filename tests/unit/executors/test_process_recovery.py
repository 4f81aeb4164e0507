"""Which processes an executor adopts, and which it kills, when it starts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from executors.node import os_processes, process_recovery, procfs
from executors.node.containers import CONTAINER_VARIABLE, Container
from executors.node.engine_environment import LaunchTag
from executors.node.node_state import InstanceRecord, Kill, NodeState, ProcessObservation, Rules
from executors.node.os_processes import EngineProcess
from executors.node.process_recovery import AdoptionResult, adopt_engines
from executors.node.procfs import Process
from executors.node.reconcile import reconcile
from executors.node.state_store import RecordedProcess, StateStore
from topics.fleet import DesiredInstance, InstanceState
from topics.instance_ranks import GangRank, GangStage

STAGES = (GangStage("L4", 1, 2), GangStage("L4", 1, 2))


def tag(name: str, gpus: tuple[int, ...], launch: str = "", **changes: object) -> LaunchTag:
    wish = DesiredInstance(name, "chat", "decode", "g", gpus)
    wish = replace(wish, **changes)  # type: ignore[arg-type]
    return LaunchTag(launch or f"launch-{name}", "n0", wish, (20_001, 20_002), 5000)


class Machine:
    """The processes with a launch tag of node n0. killed: the pids that were killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.there: list[tuple[Process, LaunchTag | None]] = []
        self.killed: list[int] = []
        self.variables: dict[str, str] = {}
        self.store = StateStore(folder)
        nodes = {"n0": self.there, "n1": [(Process(99, 99, 1), tag("z", (0,)))]}
        monkeypatch.setattr(process_recovery, "tagged_processes", lambda _: nodes)
        monkeypatch.setattr(procfs, "environment", lambda _: self.variables)
        monkeypatch.setattr(EngineProcess, "kill", lambda one: self.killed.append(one.pid))

    def runs(self, pid: int, of: LaunchTag | None, group: int = 0, started: int = 0) -> None:
        self.there.append((Process(pid, group or pid, started or pid), of))

    def adopt(
        self, *instances: InstanceRecord, recorded: dict[str, RecordedProcess] | None = None
    ) -> AdoptionResult:
        state = NodeState("n0", "r/p/owned", None, instances)
        return adopt_engines(state, recorded or {}, self.store, "host", 900_000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Machine]:
    yield Machine(monkeypatch, tmp_path)


def record(of: LaunchTag, name: str = "") -> InstanceRecord:
    wish = replace(of.desired, instance=name or of.desired.instance)
    return InstanceRecord(wish, InstanceState.READY, 1, "decode", has_process=True)


def test_a_recorded_engine_is_adopted_under_its_recorded_name(machine: Machine) -> None:
    """A woken standby has another name in its tag."""
    one = tag("a", (0,))
    machine.runs(10, one)
    found = machine.adopt(
        record(one, "woken"), recorded={"woken": RecordedProcess(10, 10, "launch-a")}
    )
    assert (found.unrecorded, found.strays, machine.killed) == (0, [], [])
    engine = found.processes["woken"]
    assert (engine.pid, engine.started, engine.launch) == (10, 10, "launch-a")
    assert engine.log == machine.store.logs.path("a", 5000)
    assert engine.container is None
    assert found.state.instances == (record(one, "woken"),)


@pytest.mark.parametrize(
    "row", [RecordedProcess(10, 9, "launch-a"), RecordedProcess(10, 10, "other")]
)
def test_a_process_that_reused_the_pid_is_not_the_recorded_one(
    machine: Machine, row: RecordedProcess
) -> None:
    """It is adopted by its own tag."""
    one = tag("a", (0,))
    machine.runs(10, one)
    found = machine.adopt(record(tag("old", (3,))), recorded={"old": row})
    assert found.processes.keys() == {"a"} and found.unrecorded == 1


def test_an_engine_without_a_record_begins_to_start_when_it_is_adopted(machine: Machine) -> None:
    one = tag("a", (0,))
    machine.runs(10, one)
    old = replace(record(one), state=InstanceState.STARTING, restarts=2, failures=1)
    old = replace(old, has_process=False)
    found = machine.adopt(old, record(tag("b", (1,))))
    assert found.unrecorded == 1
    made = {item.instance: item for item in found.state.instances}
    assert made["a"] == InstanceRecord(
        one.desired, InstanceState.STARTING, 900_000, "decode", has_process=True,
        endpoint="host:20001", ports=(20_001, 20_002), launched_ms=5000, restarts=2, failures=1,
    )  # fmt: skip
    assert made["b"] == record(tag("b", (1,)))
    new = machine.adopt()
    assert (new.state.instances[0].restarts, new.state.instances[0].failures) == (0, 0)


@pytest.mark.parametrize(("rank", "endpoint"), [(0, "host:20001"), (1, "")])
def test_only_rank_0_of_a_gang_serves_requests(machine: Machine, rank: int, endpoint: str) -> None:
    machine.runs(10, tag("a", (0,), gang=GangRank("gang", rank, STAGES)))
    (item,) = machine.adopt().state.instances
    assert item.endpoint == endpoint


def test_the_oldest_engine_on_a_gpu_stays_and_later_ones_are_killed(machine: Machine) -> None:
    machine.runs(30, tag("c", (2,)), started=3)
    machine.runs(10, tag("b", (0, 1)), started=2)
    machine.runs(20, tag("a", (1,)), started=1)
    found = machine.adopt()
    assert found.processes.keys() == {"a", "c"} and found.unrecorded == 2
    assert machine.killed == [10]
    (stray,) = found.strays
    assert (stray.process.pid, stray.gpus) == (10, {0, 1})


def test_a_recorded_engine_keeps_its_name_and_gpus(machine: Machine) -> None:
    """Even if it is younger than an engine without a record. A record without a process keeps
    nothing."""
    held, late = tag("a", (0,)), tag("x", (3,))
    machine.runs(20, held)
    machine.runs(10, tag("b", (0,)), started=1)
    machine.runs(11, tag("a", (1,), launch="second"), started=1)
    machine.runs(12, late)
    gone = replace(record(tag("gone", (3,))), has_process=False)
    found = machine.adopt(record(held), gone, recorded={"a": RecordedProcess(20, 20, "launch-a")})
    assert found.processes.keys() == {"a", "x"}
    assert sorted(machine.killed) == [10, 11]


def test_workers_without_a_leader_are_killed_once_per_group(machine: Machine) -> None:
    """Their GPUs are free only once they are gone; unknown ones may be any."""
    lost = tag("a", (1,))
    machine.runs(10, lost, group=5)
    machine.runs(11, lost, group=5)
    machine.runs(12, None, group=6)
    found = machine.adopt()
    assert found.processes == {} and machine.killed == [5, 6]
    assert [stray.gpus for stray in found.strays] == [{1}, None]
    assert [stray.process.started for stray in found.strays] == [0, 0]
    assert [stray.process.launch for stray in found.strays] == ["launch-a", ""]
    assert found.strays[1].process.log == machine.store.logs.path("unknown", 0)


def test_workers_of_an_adopted_engine_stay(machine: Machine) -> None:
    """In its group, or in another one with its tag, as the engine in a container."""
    one = tag("a", (0,))
    machine.runs(10, one, started=1)
    machine.runs(11, one, group=10)
    machine.runs(12, None, group=10)
    machine.runs(13, one)
    machine.runs(14, one, group=13)
    machine.variables = {CONTAINER_VARIABLE: "docker shoal-1"}
    found = machine.adopt()
    assert found.processes.keys() == {"a"} and found.processes["a"].pid == 10
    assert machine.killed == []
    assert found.processes["a"].container == Container("docker", "shoal-1")


def test_processes_of_a_folder_are_listed_by_node(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tag("a", (0,))
    tags = {1: one, 2: "n1", 3: None, 4: one}
    monkeypatch.setattr(procfs, "all_processes", lambda: [Process(n, n, n) for n in tags])
    monkeypatch.setattr(
        os_processes, "read_tag", lambda pid, folder: tags[pid] if folder == "/state" else None
    )
    found = os_processes.tagged_processes("/state")
    assert found == {
        "n0": [(Process(1, 1, 1), one), (Process(4, 4, 4), one)], "n1": [(Process(2, 2, 2), None)],
    }  # fmt: skip


def test_an_engine_without_a_record_that_started_long_ago_has_time_to_answer(
    machine: Machine,
) -> None:
    """Its launch was at 5 s, and it is adopted at 900 s."""
    machine.runs(10, tag("a", (0,)))
    (adopted,) = machine.adopt().state.instances
    assert (adopted.state, adopted.launched_ms) == (InstanceState.STARTING, 5000)
    for now_ms, killed in ((901_000, 0), (900_000 + Rules().start_timeout_ms, 1)):
        state = replace(NodeState("n0", "r/p/owned"), instances=(adopted,))
        _, commands = reconcile(state, {"a": ProcessObservation(alive=True)}, now_ms, Rules())
        assert sum(isinstance(one, Kill) for one in commands) == killed
