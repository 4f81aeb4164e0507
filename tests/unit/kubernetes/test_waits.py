"""Every wait of a launch has a code and a reason in the status, and an Event on its object."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors.kubernetes import claim_waits, engine_pod, kube_names, own_pods, pod_fleet
from executors.kubernetes.claim_waits import ClaimWaits
from executors.kubernetes.kube_errors import KubeError, kube_error
from executors.kubernetes.kube_kinds import DEPLOYMENT, EVENT, POD
from executors.kubernetes.scale_target import ScaleTarget
from tests.unit.kubernetes.fake_cluster import FakeCluster
from tests.unit.kubernetes.slot_bench import OTHER, SLOT, SlotBench, settle, wish
from tests.unit.kubernetes.test_scale_target import WORKLOAD, engine
from tests.unit.kubernetes.test_workload_scaler import Workload, fast, rounds, writes
from topics.fleet import InstanceState, LaunchCode

__all__ = ["fast"]
NAME = kube_names.pod_name("a", 0)
SECURITY = 'pods "p" is forbidden: violates PodSecurity "restricted:latest"'
LIMITS = 'pods "p" is forbidden: maximum memory usage per Container is 1Gi, but limit is 2Gi'
MISSING = 'pods "p" is forbidden: failed quota: mem: must specify limits.memory'
DENIED = 'admission webhook "policy.example.com" denied the request: no team label'
NO_RIGHT = 'pods is forbidden: User "u" cannot create resource "pods" in API group ""'


class Refusing(FakeCluster):
    """A cluster that answers the creation of a pod with `error`; None = it creates the pod."""

    def __init__(self) -> None:
        super().__init__()
        self.error: KubeError | None = None
        self.creates = 0

    async def create(self, kind: Any, manifest: Any) -> Any:
        if kind is POD:
            self.creates += 1
            if self.error is not None:
                raise self.error
        return await super().create(kind, manifest)


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SlotBench]:
    for module, name in ((pod_fleet, "_NO_RIGHT_S"), (engine_pod, "NO_NODE_S"),
                         (own_pods, "_NAME_TAKEN_S")):  # fmt: skip
        monkeypatch.setattr(module, name, 0.0)
    async with aiohttp.ClientSession() as client:
        made = SlotBench(tmp_path, Refusing(), client)
        await made.open()
        yield made
        await made.close()


def events(bench: SlotBench) -> list[tuple[str, str]]:
    """(reason, name of the object) of all Warnings."""
    found = [bench.cluster.objects["events", name] for name in bench.cluster.names(EVENT)]
    return [(e["reason"], e["involvedObject"]["name"]) for e in found if e["type"] == "Warning"]


def condition(bench: SlotBench, reason: str, message: str = "m", **status: Any) -> None:
    """The scheduler's condition of the pod."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    bench.cluster.change(POD, NAME, {"status": {"conditions": [scheduled], **status}})


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('pods "p" is forbidden: exceeded quota: gpus', LaunchCode.QUOTA),
        (SECURITY, LaunchCode.REFUSED), (LIMITS, LaunchCode.REFUSED),
        (MISSING, LaunchCode.REFUSED), (DENIED, LaunchCode.REFUSED),
        (NO_RIGHT, LaunchCode.NO_RIGHT),
    ],
)  # fmt: skip
async def test_a_refused_pod_gives_up_the_pool_after_one_request(
    bench: SlotBench, message: str, code: LaunchCode
) -> None:
    cluster: Any = bench.cluster
    cluster.error = kube_error(403, "Forbidden", message)
    bench.assign(SLOT, wish("a"))
    await bench.steps(3)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code, seen.pool_full) == (InstanceState.FAILED, code, True)
    assert message in seen.reason
    assert cluster.creates == 1
    assert events(bench) == [(code, NAME)]


async def test_a_missing_right_is_the_reason_while_a_starting_server_may_not_know_it(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in ((engine_pod, "QUIET_S", 0.0), (pod_fleet, "_NO_RIGHT_S", 1e9),
                                (pod_fleet, "_NO_RIGHT_PAUSE_S", 0.0)):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    cluster: Any = bench.cluster
    cluster.error = kube_error(403, "Forbidden", NO_RIGHT)
    bench.assign(SLOT, wish("a"))
    await bench.steps(4)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.NO_RIGHT)
    assert events(bench) == [(LaunchCode.NO_RIGHT, NAME)]
    cluster.error = None
    await bench.steps(2)
    assert NAME in cluster.names(POD)


@pytest.mark.parametrize("code", [400, 422])
async def test_other_refusals_concern_the_pool_also_if_its_slot_has_a_node(
    bench: SlotBench, code: int
) -> None:
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    bench.cluster.run_pod(NAME, "10.0.0.7")
    await bench.steps(3)
    cluster: Any = bench.cluster
    cluster.error = kube_error(code, "Invalid", "spec.x is wrong")
    bench.assign(SLOT, wish("a"), wish("b", 1))
    await bench.steps(3)
    seen = bench.instance(SLOT, "b")
    assert (seen.code, seen.pool_full) == (LaunchCode.REFUSED, True)
    assert "spec.x is wrong" in seen.reason


async def test_a_webhook_that_is_down_is_the_reason_until_it_is_back(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pod, "QUIET_S", 0.0)
    cluster: Any = bench.cluster
    why = 'Internal error occurred: failed calling webhook "w": connection refused'
    cluster.error = kube_error(500, "InternalError", why)
    bench.assign(SLOT, wish("a"))
    await bench.steps(4)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.ADMISSION_AWAY)
    assert 'failed calling webhook "w"' in seen.reason
    assert events(bench) == [(LaunchCode.ADMISSION_AWAY, NAME)]
    cluster.error = None
    for _ in range(200):
        await bench.steps(1)
        if NAME in cluster.names(POD):
            break
    bench.cluster.run_pod(NAME, "10.0.0.7")
    await bench.steps(4)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code, seen.reason) == (InstanceState.READY, "", "")


async def test_a_creation_without_an_answer_is_told(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pod, "QUIET_S", 0.0)
    cluster: Any = bench.cluster

    async def never(*_words: Any) -> None:
        await asyncio.Event().wait()

    cluster.create = never
    bench.assign(SLOT, wish("a"))
    await bench.steps(3)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.NO_ANSWER)


async def test_scheduling_gates_are_the_reason_and_no_failure(bench: SlotBench) -> None:
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    bench.cluster.change(POD, NAME, {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/q"}]}})
    condition(bench, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")
    await bench.steps(20)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.GATED)
    assert "kueue.x-k8s.io/q" in seen.reason
    assert events(bench) == [(LaunchCode.GATED, NAME)]


async def test_a_preemption_for_the_pod_is_waited_for(bench: SlotBench) -> None:
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    condition(bench, "Unschedulable", "Insufficient nvidia.com/gpu", nominatedNodeName="n7")
    await bench.steps(20)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.PREEMPTING)
    assert "n7" in seen.reason
    assert ("delete", "pods", NAME) not in bench.cluster.writes
    condition(bench, "Unschedulable", "Insufficient nvidia.com/gpu", nominatedNodeName=None)
    await bench.steps(3)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.FAILED, LaunchCode.NO_NODE)


async def test_a_pod_that_no_scheduler_has_seen_says_so(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pod, "QUIET_S", 0.0)
    bench.assign(SLOT, wish("a"))
    await bench.steps(4)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.NO_SCHEDULER)


async def test_a_pod_that_waits_for_a_node_of_an_autoscaler_says_why(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_pod, "NO_NODE_S", 100.0)
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    condition(bench, "Unschedulable", "0/3 nodes are available")
    await bench.steps(3)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.UNSCHEDULABLE)
    assert seen.reason == "0/3 nodes are available"


@pytest.mark.parametrize(
    ("waiting", "state", "code"),
    [
        ({"reason": "ImagePullBackOff"}, InstanceState.FAILED, LaunchCode.CONTAINER),
        ({"reason": "ErrImagePull", "message": "m"}, InstanceState.STARTING, LaunchCode.CONTAINER),
        ({"reason": "ContainerCreating"}, InstanceState.STARTING, LaunchCode.CONTAINER),
    ],
)
async def test_a_container_that_does_not_start_says_why(
    bench: SlotBench, waiting: dict[str, str], state: InstanceState, code: LaunchCode,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(engine_pod, "QUIET_S", 0.0)
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    containers = [{"name": "engine", "state": {"waiting": waiting}}]
    status = {"phase": "Pending", "containerStatuses": containers,
              "conditions": [{"type": "PodScheduled", "status": "True"}]}  # fmt: skip
    bench.cluster.change(POD, NAME, {"spec": {"nodeName": "n0"}, "status": status})
    await bench.steps(4)
    seen = bench.instance(SLOT, "a")
    assert (seen.state, seen.code) == (state, code)
    assert waiting["reason"] in seen.reason


def test_a_controller_that_makes_some_pods_is_not_blocked() -> None:
    workload = replace(WORKLOAD, replicas=3, blocked="FailedCreate: the webhook failed")
    waits = ClaimWaits(lambda *_: None)
    target = ScaleTarget([engine("a", "p1"), engine("b"), engine("c")])
    for pods, now_s in ((1, 0.0), (1, 2.9), (2, 4.0), (2, 6.9)):
        waits.step(workload, target, pods, now_s)
        assert target.claims[2].failure is None
    waits.step(workload, target, 2, 7.0)
    assert target.claims[2].failure is not None


async def scaled(tmp_path: Path, client: aiohttp.ClientSession, replicas: int) -> SlotBench:
    made = SlotBench(tmp_path, Workload(replicas), client, "scale")
    await made.open()
    return made


async def test_a_plan_above_the_owners_maximum_fails_only_what_is_above(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as client:
        bench = await scaled(tmp_path, client, 1)
        cluster: Any = bench.cluster
        note = {"metadata": {"annotations": {kube_names.MAX: "2"}}}
        cluster.change(DEPLOYMENT, "e", note)
        bench.assign(SLOT, wish("a", 0), wish("b", 1))
        bench.assign(OTHER, wish("c", 0), wish("d", 1))
        await rounds(bench, 8)
        seen = [*bench.statuses[SLOT].instances, *bench.statuses[OTHER].instances]
        ready = [one.instance for one in seen if one.state is InstanceState.READY]
        failed = [one for one in seen if one.state is InstanceState.FAILED]
        assert len(ready) == len(failed) == 2
        assert {one.code for one in failed} == {LaunchCode.AT_MAXIMUM}
        assert "shoal.dev/max of deployments/e is 2" in failed[0].reason
        assert events(bench) == [(LaunchCode.AT_MAXIMUM, "e")]
        assert writes(cluster) == [("scale", "deployments", "e")] and cluster.replicas == 2
        await bench.close()


async def test_a_controller_that_cannot_make_pods_gives_the_replicas_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_waits, "_BLOCKED_S", 0.0)
    monkeypatch.setattr(engine_pod, "QUIET_S", 0.0)
    async with aiohttp.ClientSession() as client:
        bench = await scaled(tmp_path, client, 1)
        cluster: Any = bench.cluster
        cluster.follow = lambda: None
        bench.assign(SLOT, wish("a", 0), wish("b", 1))
        await rounds(bench, 6)
        assert cluster.replicas == 2
        seen = bench.instance(SLOT, "b")
        assert (seen.state, seen.code) == (InstanceState.STARTING, LaunchCode.NO_PODS)
        blocked = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate",
                   "message": "exceeded quota: gpus"}  # fmt: skip
        cluster.change(DEPLOYMENT, "e", {"status": {"conditions": [blocked]}})
        await rounds(bench, 6)
        seen = bench.instance(SLOT, "b")
        assert (seen.state, seen.code) == (InstanceState.FAILED, LaunchCode.NO_PODS)
        assert "exceeded quota: gpus" in seen.reason and seen.pool_full
        assert bench.state(SLOT, "a") is InstanceState.READY
        assert cluster.replicas == 1
        assert (LaunchCode.NO_PODS, "e") in events(bench)
        await settle()
        await bench.close()
