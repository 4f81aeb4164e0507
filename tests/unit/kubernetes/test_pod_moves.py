"""Mode `scale` in memory: pods that must leave their nodes."""

from __future__ import annotations

import math
from typing import Any

import pytest

from executors.kubernetes import kube_names as names
from executors.kubernetes import notices, pod_moves, surplus_pods
from executors.kubernetes.kube_kinds import DEPLOYMENT, EVENT, NODE, POD
from tests.unit.kubernetes.slot_bench import SLOT, SlotBench, wish
from tests.unit.kubernetes.test_workload_scaler import bench, fast, rounds
from topics.fleet import InstanceState

__all__ = ["bench", "fast"]


@pytest.fixture(autouse=True)
def no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surplus_pods, "MOVED_LAG_S", 0.0)


async def serve(bench: SlotBench) -> Any:
    """Instances a and b on the two pods, both on node n0."""
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.READY}
    return bench.cluster


def notify(cluster: Any, **spec: Any) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    cluster.put(NODE, {"metadata": {"name": "n0"}, "spec": spec, "status": {"conditions": ready}})


def serving(cluster: Any) -> list[str]:
    """The serving labels of all pods, with the nodes of the pods."""
    pods = [cluster.objects["pods", name] for name in cluster.names(POD)]
    found = ((p["spec"].get("nodeName"), p["metadata"]["labels"].get(names.SERVING)) for p in pods)
    return sorted(f"{node} {label}" for node, label in found)


async def until(bench: SlotBench, wanted: list[str]) -> None:
    """Step until `serving` returns `wanted`."""
    while serving(bench.cluster) != wanted:
        await rounds(bench, 1)


async def test_instances_move_off_a_cordoned_node_without_a_restart(bench: SlotBench) -> None:
    cluster = await serve(bench)
    bench.kind.running[0] = 1
    cluster.node = "n1"
    notify(cluster, unschedulable=True)
    moved = ["n0 draining"] * 2 + ["n1 true"] * 2
    while serving(cluster) != moved:
        await rounds(bench, 1)
        assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.READY}
        assert sum(one.endswith(" true") for one in serving(cluster)) >= 2
        assert bench.slots.runners[SLOT].reclaim_left_s() is None
    await rounds(bench)
    assert serving(cluster) == moved  # requests in flight
    slots = [cluster.objects["pods", one]["metadata"]["labels"] for one in cluster.names(POD)]
    assert all(labels[names.SLOT] for labels in slots)  # by which the budget refuses evictions
    bench.kind.running[0] = 0
    await until(bench, ["n1 true"] * 2)
    assert cluster.replicas == 2
    assert {bench.instance(SLOT, one).restarts for one in "ab"} == {0}
    assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.READY}


@pytest.mark.parametrize("obstacle", ["maximum", "no node"])
async def test_the_plan_hears_of_pods_that_cannot_be_replaced_in_their_workload(
    bench: SlotBench, obstacle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await serve(bench)
    monkeypatch.setattr(pod_moves, "NO_NODE_S", 0.0)
    if obstacle == "maximum":
        cluster.change(DEPLOYMENT, "e", {"metadata": {"annotations": {names.MAX: "2"}}})
    cluster.node = ""
    notify(cluster, unschedulable=True)
    while bench.slots.runners[SLOT].reclaim_left_s() is None or cluster.replicas > 2:
        await rounds(bench, 1)
    assert bench.slots.runners[SLOT].reclaim_left_s() == math.inf
    events = [cluster.objects["events", name] for name in cluster.names(EVENT)]
    (told,) = [one["message"] for one in events if one["reason"] == "NotMoved"]
    assert told.endswith("is 2" if obstacle == "maximum" else "0/1 nodes")
    await until(bench, ["n0 true"] * 2)
    notify(cluster)
    while bench.slots.runners[SLOT].reclaim_left_s() is not None:
        await rounds(bench, 1)


async def test_a_pod_without_a_replacement_leaves_the_routes_when_half_of_its_notice_has_passed(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = await serve(bench)
    monkeypatch.setattr(pod_moves, "NO_NODE_S", 1e9)
    bench.kind.running[0] = 1
    cluster.node = ""
    taint = {"key": "cloud.google.com/impending-node-termination"}
    notify(cluster, taints=[taint])
    await until(bench, ["None None"] * 2 + ["n0 true"] * 2)
    monkeypatch.setattr(notices, "NOTICE_S", 0.0)
    await until(bench, ["None None"] * 2 + ["n0 draining"] * 2)
    assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.STARTING}
    assert {bench.instance(SLOT, one).restarts for one in "ab"} == {1}
