"""`shoal status` shows why launches wait, and the faults of nodes."""

from __future__ import annotations

from streams.cli.status import lines
from streams.health.launch_waits import node_faults, waiting_launches
from tests.unit.cli.test_status_command import FACTS
from topics.fleet import InstanceState, LaunchCode, ObservedInstance, Status


def instance(name: str, state: InstanceState, code: str = "", reason: str = "") -> ObservedInstance:
    return ObservedInstance(
        name, "chat", "aggregated", "g:1", state, (0,), code=code, reason=reason
    )


def statuses() -> dict[str, Status]:
    gated = instance("a", InstanceState.STARTING, LaunchCode.GATED, "scheduling gates: q")
    failed = instance("b", InstanceState.FAILED, LaunchCode.NO_NODE, "no node")
    usual = instance("c", InstanceState.STARTING)
    fault = ("cannot read rollouts: no right",)
    return {
        "n.1": Status("n.1", "us/p/owned", "ex", 1, 1, (failed, usual), faults=fault),
        "n.0": Status("n.0", "us/p/owned", "ex", 1, 1, (gated,), faults=fault),
    }


def test_only_starting_instances_with_a_code_wait() -> None:
    assert waiting_launches(statuses()) == [
        {"model": "chat", "instance": "a", "node": "n.0", "code": "SchedulingGated",
         "reason": "scheduling gates: q"}
    ]  # fmt: skip


def test_nodes_with_the_same_fault_are_together() -> None:
    assert node_faults(statuses()) == [
        {"fault": "cannot read rollouts: no right", "nodes": ["n.0", "n.1"]}
    ]


def test_the_status_shows_waits_and_faults() -> None:
    found = statuses()
    facts = {**FACTS, "leads": True, "waits": waiting_launches(found),
             "node_faults": node_faults(found)}  # fmt: skip
    text = " ".join(" ".join(map(str, lines(facts))).split())
    assert "Waiting starts chat on n.0: scheduling gates: q (SchedulingGated)" in text
    assert "Faults n.0 and 1 other node: cannot read rollouts: no right" in text
