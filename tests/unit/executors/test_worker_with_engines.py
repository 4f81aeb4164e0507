"""A node worker carries out commands and reports its engines, which exist in memory only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from executors.engines.engine_protocol import EngineKind, RoleSwitch
from executors.node.executor import Executor
from executors.node.executor_config import parse_config
from executors.node.executor_metrics import Metrics
from executors.node.node_lock import NodeLock
from executors.node.node_state import (
    InstanceRecord,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Wake,
)
from executors.node.node_worker import NodeWorker, rules_for
from tests.unit.executors.test_executor_config import GOOD
from topics.checks import InvalidValue
from topics.fleet import Assignment, DesiredInstance, InstanceState, Status

NOW = 1_700_000_000_000
POOL = "r/p/owned"
WISH = DesiredInstance("a", "chat", "aggregated", "g", (0,), engine="fake")
READY = InstanceState.READY


class MemoryEngines:
    """An `EngineRunner` whose engines are names. calls: the commands that it got. answers: the
    result of the next observations; an engine without one is only alive."""

    def __init__(self) -> None:
        self.fault, self.endpoints_vary, self.launch_basis = "", False, ""
        self.templates: dict[str, str] = {}
        self.calls: list[str] = []
        self.answers: dict[str, ProcessObservation] = {}
        self.alive: dict[str, str] = {}
        self.saves, self.can_save, self.can_launch = 0, True, True
        self.released = 0
        self.blocked: set[int] = set()
        self.rules: list[Rules] = []
        self.dies_on_kill = True

    def template_of(self, instance: str) -> str:
        return ""

    def restore(self, state: NodeState) -> tuple[NodeState, int]:
        item = InstanceRecord(WISH, READY, NOW, "aggregated", has_process=True, ports=(7,))
        return replace(state, instances=(item,)), 1

    def save(self, _: NodeState) -> bool:
        self.saves += 1
        return self.can_save

    def observe(self, records: tuple[InstanceRecord, ...]) -> Mapping[str, ProcessObservation]:
        gone = ProcessObservation(alive=False, end_reason="gone")
        return {
            item.instance: self.answers.get(item.instance, ProcessObservation(alive=True))
            if item.instance in self.alive
            else gone
            for item in records
            if item.has_process
        }

    def node_released(self) -> None:
        self.released += 1

    def blocked_gpus(self) -> Collection[int]:
        return self.blocked

    def stop_ms(self, rules: Rules) -> Mapping[str, int]:
        self.rules.append(rules)
        return {"fake": 20_000}

    def launch(
        self, command: Launch, _now_ms: int, used_ports: set[int]
    ) -> tuple[str, tuple[int, ...]] | None:
        name = command.desired.instance
        self.calls.append(f"launch {name} as {command.phase}")
        if not self.can_launch:
            return None
        port = 100 + len(used_ports)
        used_ports.add(port)
        self.alive[name] = f"old-name:{port}"
        return self.alive[name], (port,)

    def rename_sleeper(self, command: Wake) -> None:
        self.calls.append(f"wake {command.sleeper} as {command.instance}")
        self.alive[command.instance] = self.alive.pop(command.sleeper)

    def terminate(self, instance: str) -> None:
        self.calls.append(f"terminate {instance}")
        self.alive.pop(instance, None)

    def kill(self, instance: str) -> None:
        self.calls.append(f"kill {instance}")
        if self.dies_on_kill:
            self.alive.pop(instance, None)

    def start_probes(self, records: tuple[InstanceRecord, ...], now_ms: int, now_s: float) -> None:
        pass

    async def close(self) -> None:
        self.calls.append("close")

    def terminate_all(self) -> None:
        self.calls.append("terminate all")

    def kill_all(self) -> None:
        self.calls.append("kill all")
        self.alive.clear()

    def count_alive(self) -> int:
        return len(self.alive)


def fake_kind(switch: RoleSwitch = RoleSwitch.ROUTING) -> EngineKind:
    return cast(EngineKind, SimpleNamespace(role_switch=switch, sleeps=True))


class Bench:
    """A node of an owned pool with an assignment by leader 5. Times in seconds since NOW."""

    def __init__(self, speed: float = 1.0, switch: RoleSwitch = RoleSwitch.ROUTING) -> None:
        base = parse_config({**GOOD, "time_base": f"{speed},{NOW},0", "advertise": "new-name"})
        self.config = replace(base, engines={"fake": fake_kind(switch)})
        self.engines, self.metrics = MemoryEngines(), Metrics()
        self.node_lock = NodeLock("n0", "b1", "here")
        self.told: list[Status] = []
        self.takes: bool | Exception = True
        self.worker = NodeWorker(
            self.config.nodes[0],
            self.config,
            self.engines,
            self.node_lock,
            self.metrics,
            self.publish,
            rules_for(self.config),
            "new-name:1",
        )
        self.generation = 0

    async def publish(self, status: Status) -> bool:
        if isinstance(self.takes, Exception):
            raise self.takes
        self.told.append(status)
        return self.takes

    def want(self, *wishes: DesiredInstance, token: int = 5) -> None:
        self.generation += 1
        self.worker.accept(Assignment("n0", POOL, self.generation, token, 0, wishes))

    async def step(self, at_s: float) -> list[str]:
        """The commands of one step."""
        before = len(self.engines.calls)
        self.worker.step(NOW + round(at_s * 1000), at_s, self.worker.ports_used)
        for _ in range(3):
            await asyncio.sleep(0)
        return self.engines.calls[before:]

    async def ready(self, *wishes: DesiredInstance) -> None:
        """Launch `wishes`, which are ready at 2 s."""
        self.want(*wishes)
        await self.step(1.0)
        for wish in wishes:
            self.engines.answers[wish.instance] = idle(1.5)
        await self.step(2.0)
        assert {item.state for item in self.worker.state.instances} == {READY}

    def total(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def idle(at_s: float, **more: Any) -> ProcessObservation:
    return ProcessObservation(
        alive=True, healthy=True, in_flight=0, probed_ms=NOW + round(at_s * 1000), **more
    )


async def test_a_launched_instance_is_recorded_and_published_at_the_advertised_address() -> None:
    bench = Bench()
    await bench.ready(WISH)
    assert bench.engines.calls == ["launch a as aggregated"]
    assert bench.worker.ports_used == {100}
    (item,) = bench.worker.state.instances
    assert (item.endpoint, item.ports) == ("old-name:100", (100,))
    status = bench.told[-1]
    assert (status.node, status.pool, status.executor) == ("n0", POOL, "ex")
    assert (status.observed_generation, status.observed_token) == (1, 5)
    assert (status.boot, status.place, status.load_feed) == ("b1", "here", "new-name:1")
    assert (status.address, status.addresses, status.refused) == ("new-name", (), 0)
    (seen,) = status.instances
    assert (seen.state, seen.endpoint) == (READY, "new-name:100")


async def test_engines_with_own_addresses_are_published_as_they_are() -> None:
    bench = Bench()
    bench.engines.endpoints_vary = True
    bench.engines.launch_basis = "slots"
    await bench.ready(WISH, replace(WISH, instance="b", gpus=(1,)))
    status = bench.told[-1]
    assert [seen.endpoint for seen in status.instances] == ["old-name:100", "old-name:101"]
    assert (status.addresses, status.launch_basis) == (("old-name",), "slots")


async def test_a_launch_that_fails_is_tried_again_without_ports() -> None:
    bench = Bench()
    bench.engines.can_launch = False
    bench.want(WISH)
    await bench.step(1.0)
    assert bench.worker.ports_used == set()
    bench.engines.can_launch = True
    await bench.step(1.1)
    assert await bench.step(5.9) == []
    assert await bench.step(6.2) == ["launch a as aggregated"]


async def test_drained_instances_are_stopped_and_late_ones_killed() -> None:
    bench = Bench()
    await bench.ready(WISH, replace(WISH, instance="b", gpus=(1,), engine="other"))
    bench.engines.dies_on_kill = False
    bench.engines.answers["b"] = replace(idle(1.5), in_flight=3)
    bench.want()
    bench.engines.answers["b"] = replace(idle(200.0), in_flight=3)
    await bench.step(3.0)
    found = await bench.step(3.0 + 120.0)
    assert "terminate b" in found


async def test_a_stuck_start_is_killed() -> None:
    bench = Bench()
    bench.want(WISH)
    await bench.step(1.0)
    assert await bench.step(600.9) == []
    assert await bench.step(601.0) == ["kill a"]


async def test_a_role_switch_by_routing_is_measured() -> None:
    bench = Bench()
    await bench.ready(replace(WISH, phase="prefill"))
    bench.want(replace(WISH, phase="decode"))
    await bench.step(3.0)
    assert bench.worker.state.instances[0].state is InstanceState.SWITCHING
    bench.engines.answers["a"] = idle(3.5)
    await bench.step(4.5)
    labels = {"engine": "fake", "strategy": "routing", "outcome": "switched"}
    assert bench.total("shoal_role_switch_seconds_count", **labels) == 1.0
    assert bench.total("shoal_role_switch_seconds_sum", **labels) == 1.5
    await bench.step(5.5)
    assert bench.total("shoal_role_switch_seconds_count", **labels) == 1.0


async def test_a_switch_without_an_answer_is_rolled_back_and_measured() -> None:
    bench = Bench()
    await bench.ready(replace(WISH, phase="prefill"))
    bench.want(replace(WISH, phase="decode"))
    await bench.step(3.0)
    bench.engines.answers["a"] = ProcessObservation(alive=True)
    await bench.step(33.0)
    (item,) = bench.worker.state.instances
    assert (item.state, item.phase, item.refused_phase) == (READY, "prefill", "decode")
    labels = {"engine": "fake", "strategy": "routing", "outcome": "rolled back"}
    assert bench.total("shoal_role_switch_seconds_sum", **labels) == 30.0


async def test_a_switch_by_relaunch_that_is_given_up_has_ended() -> None:
    bench = Bench(switch=RoleSwitch.RELAUNCH)
    await bench.ready(replace(WISH, phase="prefill"))
    bench.want(replace(WISH, phase="decode"))
    await bench.step(3.0)
    bench.want()
    await bench.step(4.0)
    labels = {"engine": "fake", "strategy": "relaunch", "outcome": "ended"}
    assert bench.total("shoal_role_switch_seconds_count", **labels) == 1.0


async def asleep(bench: Bench) -> None:
    """One instance sleeps at 5 s, and another one keeps the node."""
    keeper = replace(WISH, instance="keeper", gpus=(1,))
    await bench.ready(WISH, keeper)
    bench.want(keeper)
    await bench.step(3.0)
    bench.engines.answers["a"] = idle(3.5)
    await bench.step(4.0)
    bench.engines.answers["a"] = idle(4.5, asleep=True)
    await bench.step(5.0)
    states = {item.instance: item.state for item in bench.worker.state.instances}
    assert states == {"a": InstanceState.ASLEEP, "keeper": READY}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [(idle(6.5), "woken"), (None, "ended")],
)
async def test_a_wake_is_measured(answer: ProcessObservation | None, outcome: str) -> None:
    bench = Bench()
    await asleep(bench)
    bench.want(replace(WISH, instance="keeper", gpus=(1,)), replace(WISH, instance="new"))
    assert await bench.step(6.0) == ["wake a as new"]
    if answer is None:
        bench.want(replace(WISH, instance="keeper", gpus=(1,)))
    else:
        bench.engines.answers["new"] = answer
    await bench.step(8.0)
    labels = {"engine": "fake", "outcome": outcome}
    assert bench.total("shoal_executor_wake_seconds_count", **labels) == 1.0
    assert bench.total("shoal_executor_wake_seconds_sum", **labels) == 2.0


async def test_a_reclaim_notice_is_published_once_and_ends_drains_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The notice names seconds from now; small differences of a repeated notice are no news."""
    mono_s = [10.0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: round(mono_s[0] * 1e9))
    bench = Bench(speed=2.0)
    await bench.ready(WISH)

    async def reclaimed_s(left_s: float | None, at_s: float) -> float:
        bench.worker.on_reclaim_notice(left_s)
        await bench.step(at_s)
        return (bench.told[-1].reclaim_ms - NOW) / 1000 if bench.told[-1].reclaim_ms else 0.0

    assert await reclaimed_s(30.0, 3.0) == 80.0, "10 s and 30 s at twice the speed"
    assert bench.engines.rules[-1].drain_by_ms == 0
    await bench.step(4.0)
    assert bench.worker._rules.drain_by_ms == 0
    assert await reclaimed_s(35.0, 5.0) == 80.0
    assert await reclaimed_s(35.1, 6.0) == 90.2
    assert await reclaimed_s(None, 7.0) == 0.0
    assert await reclaimed_s(5.0, 8.0) == 30.0


async def test_a_drain_ends_ten_seconds_before_the_node_is_reclaimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    bench = Bench()
    await bench.ready(WISH)
    bench.worker.on_reclaim_notice(30.0)
    bench.want()
    bench.engines.answers["a"] = replace(idle(100.0), in_flight=2)
    assert await bench.step(19.9) == []
    assert await bench.step(20.0) == ["terminate a"]


async def test_only_news_is_saved_and_a_failed_write_is_repeated() -> None:
    bench = Bench()
    await bench.ready(WISH)
    saves = bench.engines.saves
    bench.engines.answers["a"] = replace(idle(2.5), in_flight=4, finished=9, held_kv=1)
    await bench.step(3.0)
    assert bench.engines.saves == saves, "load is no news"
    bench.engines.can_save = False
    bench.want(replace(WISH, instance="a"), replace(WISH, instance="b", gpus=(1,)))
    await bench.step(4.0)
    assert bench.engines.saves == saves + 1
    await bench.step(8.9)
    assert bench.engines.saves == saves + 1
    bench.engines.can_save = True
    await bench.step(9.0)
    await bench.step(60.0)
    assert bench.engines.saves == saves + 2


async def test_load_waits_for_the_heartbeat_and_a_change_does_not() -> None:
    bench = Bench()
    await bench.ready(WISH)
    told = len(bench.told)
    bench.engines.answers["a"] = replace(idle(2.5), in_flight=4)
    await bench.step(2.5)
    await bench.step(3.9)
    assert len(bench.told) == told
    await bench.step(4.0)
    assert len(bench.told) == told + 1 and bench.told[-1].instances[0].in_flight == 4
    bench.engines.fault = "the disk is full"
    await bench.step(4.1)
    assert len(bench.told) == told + 1, "not twice within 0.2 s"
    await bench.step(4.3)
    assert bench.told[-1].faults == ("the disk is full",)


async def test_a_status_that_cannot_be_encoded_does_not_end_the_worker(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.takes = InvalidValue("status", 1, "nothing")
    await bench.step(1.0)
    assert "n0: status cannot be encoded" in caplog.text
    bench.takes = True
    await bench.step(2.0)
    assert bench.told


async def test_a_lost_node_kills_its_engines_once_and_starts_them_on_its_return() -> None:
    bench = Bench()
    await bench.ready(WISH)
    bench.worker.set_lost(True)
    bench.worker.set_lost(True)
    assert bench.engines.calls.count("kill all") == 1
    assert await bench.step(3.0) == []
    bench.worker.set_lost(False)
    await bench.step(4.0)
    assert await bench.step(10.0) == ["launch a as aggregated"]


async def test_a_node_without_instances_is_released_and_its_blocked_gpus_wait() -> None:
    bench = Bench()
    await bench.step(0.5)
    assert bench.engines.released == 1
    bench.engines.blocked = {0}
    bench.want(WISH)
    assert await bench.step(1.0) == []
    bench.engines.blocked = set()
    assert await bench.step(2.0) == ["launch a as aggregated"]
    released = bench.engines.released
    await bench.step(3.0)
    assert bench.engines.released == released


async def test_refusals_are_counted_by_reason(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.want(token=5)
    bench.want(token=4)
    bench.worker.refuse(Assignment("n0", POOL, 9, 9, 0), "unclaimed token")
    await bench.step(1.0)
    for why in ("leader token", "unclaimed token"):
        assert bench.total("shoal_executor_refused_assignments_total", reason=why) == 1.0
    assert bench.told[-1].refused == 2
    assert "refused assignment 9 of leader 9: unclaimed token" in caplog.text


def test_deadlines_are_at_least_the_real_time_that_processes_need() -> None:
    """At a speed of 100, 15 real seconds are 1,500 s of domain time."""
    slow, fast = rules_for(Bench(1.0).config), rules_for(Bench(100.0).config, standby=False)
    assert (slow.start_timeout_ms, slow.kill_after_ms) == (600_000, 15_000)
    assert (slow.unhealthy_after_ms, slow.drain_timeout_ms) == (30_000, 120_000)
    assert (fast.start_timeout_ms, fast.kill_after_ms) == (1_500_000, 200_000)
    assert (fast.unhealthy_after_ms, fast.drain_timeout_ms) == (500_000, 120_000)
    assert slow.live_switch_engines == slow.standby_engines == {"fake"}
    assert fast.standby_engines == frozenset()
    relaunching = rules_for(Bench(switch=RoleSwitch.RELAUNCH).config)
    assert relaunching.live_switch_engines == frozenset()


class FakeBroker:
    highest_token: int | None = 5
    forged = 7
    caught_up = True


def executor(bench: Bench) -> Executor:
    return Executor(bench.config, FakeBroker(), {"n0": bench.worker}, bench.metrics)


async def test_an_executor_steps_its_nodes_until_its_end() -> None:
    bench = Bench()
    bench.want(WISH)
    running = executor(bench)
    end = asyncio.Event()
    task = asyncio.create_task(running.run(end))
    while not bench.told:
        await asyncio.sleep(0)
    end.set()
    await task
    assert bench.engines.calls == ["launch a as aggregated"]
    assert bench.total("shoal_executor_instances", state="starting") == 1.0
    assert bench.total("shoal_executor_instances", state="ready") == 0.0
    assert bench.total("shoal_executor_forged_records") == 7.0
    assert bench.total("shoal_executor_faults") == 0.0


async def test_faults_of_nodes_are_counted() -> None:
    bench = Bench()
    bench.engines.fault = "the disk is full"
    other = Status("n0", POOL, "ex-2", 1, NOW, boot="b2", place="there")
    bench.node_lock.on_status(other, NOW, NOW, live=True)
    executor(bench)._update_metrics(NOW + 1)
    assert bench.total("shoal_executor_faults") == 2.0


async def test_engines_are_adopted_and_reported(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.INFO):
        executor(bench).restore()
    assert "adopted 1 running engines" in caplog.text
    assert bench.worker.ports_used == {7}


async def test_engines_outlive_their_executor_unless_it_ends_them() -> None:
    bench = Bench()
    bench.engines.alive["a"] = "x:1"
    await executor(bench).close(end_engines=False)
    assert bench.engines.calls == ["close"]


async def test_stubborn_engines_are_killed_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])

    async def passes(seconds: float) -> None:
        clock_s[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", passes)
    bench = Bench()
    bench.engines.alive["a"] = "x:1"
    await executor(bench).close(end_engines=True)
    assert bench.engines.calls == ["close", "terminate all", "kill all"]
    assert 1.0 < clock_s[0] < 1.1


async def test_engines_that_cannot_be_killed_are_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock_s[0])

    async def passes(seconds: float) -> None:
        clock_s[0] += seconds

    monkeypatch.setattr(asyncio, "sleep", passes)
    bench = Bench()
    bench.engines.alive["a"] = "x:1"
    monkeypatch.setattr(bench.engines, "kill_all", lambda: bench.engines.calls.append("kill all"))
    await executor(bench).close(end_engines=True)
    assert bench.engines.calls.count("kill all") == 1
    assert "cannot be killed" in caplog.text
    assert 2.0 < clock_s[0] < 2.1


async def test_a_scripted_fault_reaches_the_launches_of_its_node(tmp_path: Path) -> None:
    bench = Bench()
    path = tmp_path / "faults.json"
    bench.config = replace(bench.config, faults_file=str(path))
    told: list[tuple[str, str]] = []
    running = Executor(
        bench.config,
        FakeBroker(),
        {"n0": bench.worker},
        bench.metrics,
        lambda node, fault: told.append((node, fault)),
    )
    running._apply_faults(NOW)
    assert told == [], "there is no file"
