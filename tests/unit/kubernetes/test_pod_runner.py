"""Mode `pods` in memory: launches, failures, adoption, drains and notices."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import aiohttp
import pytest

from executors.kubernetes import engine_pod, own_pods, pod_fleet, template_folder
from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod, end_of
from executors.kubernetes.kube_kinds import NODE, POD
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from tests.unit.kubernetes.fake_cluster import FakeCluster
from tests.unit.kubernetes.slot_bench import SLOT, SlotBench, settle, wish
from topics.fleet import NO_DEADLINE_MS, DesiredInstance, InstanceState

NAME = names.pod_name("a", 0)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    monkeypatch.setattr(pod_fleet, "_LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(pod_fleet, "_MOST_PAUSE_S", 0.0)
    monkeypatch.setattr(own_pods, "_NAME_TAKEN_S", 0.0)
    return FakeCluster()


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def bench(
    tmp_path: Path, cluster: FakeCluster, client: aiohttp.ClientSession
) -> AsyncIterator[SlotBench]:
    made = SlotBench(tmp_path, cluster, client)
    await made.open()
    yield made
    await made.close()


async def serve(bench: SlotBench) -> None:
    bench.assign(SLOT, wish("a"))
    await bench.steps(2)
    bench.cluster.run_pod(NAME, "10.0.0.7")
    await bench.steps(4)
    assert bench.state(SLOT, "a") is InstanceState.READY


async def test_an_instance_becomes_one_pod_and_is_ready_at_its_address(bench: SlotBench) -> None:
    await serve(bench)
    assert bench.cluster.names(POD) == [NAME]
    assert bench.instance(SLOT, "a").endpoint == "10.0.0.7:8000"
    assert bench.statuses[SLOT].addresses == ("10.0.0.7",)
    pod = bench.cluster.objects["pods", NAME]
    assert pod["spec"]["containers"][0]["command"] == [
        "engine", "--host=$(POD_IP)", "--phase=aggregated",
    ]  # fmt: skip
    assert pod["metadata"]["labels"][names.SERVING] == "true"


async def test_a_create_whose_answer_is_lost_makes_no_second_pod(bench: SlotBench) -> None:
    bench.cluster.lost_answers = 1
    await serve(bench)
    creates = [write for write in bench.cluster.writes if write[:2] == ("create", "pods")]
    assert len(creates) == 2
    assert bench.cluster.names(POD) == [NAME]


async def test_a_quota_gives_the_instance_up_at_once_with_the_reason(bench: SlotBench) -> None:
    bench.cluster.quota = 0
    bench.assign(SLOT, wish("a"))
    await bench.steps(3)
    seen = bench.instance(SLOT, "a")
    assert seen.state is InstanceState.FAILED
    assert seen.reason == "quota: exceeded quota: gpus, requested: 1, used: 0"
    assert seen.pool_full


@pytest.mark.parametrize("bound", [False, True])
async def test_a_slot_without_a_node_shows_a_full_pool_and_a_bound_slot_only_a_full_node(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch, bound: bool
) -> None:
    monkeypatch.setattr(engine_pod, "NO_NODE_S", 0.0)
    if bound:
        await serve(bench)
        bench.cluster.change(POD, NAME, {"spec": {"nodeName": "n0"}})
    bench.assign(SLOT, *[wish("a")] * bound, wish("b", 1))
    await bench.steps(2)
    why = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
           "message": "Insufficient nvidia.com/gpu"}  # fmt: skip
    bench.cluster.change(POD, names.pod_name("b", 0), {"status": {"conditions": [why]}})
    await bench.steps(3)
    seen = bench.instance(SLOT, "b")
    assert seen.state is InstanceState.FAILED
    assert seen.reason == "no node: Insufficient nvidia.com/gpu"
    assert seen.pool_full is not bound


async def test_an_invalid_template_is_the_reason_of_the_failure(
    bench: SlotBench, tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text("spec: {containers: []}")
    bench.assign(SLOT, wish("a"))
    await bench.steps(3)
    assert "template.spec.containers" in bench.instance(SLOT, "a").reason


async def test_a_server_that_is_away_stops_nothing_and_gets_the_writes_later(
    bench: SlotBench,
) -> None:
    await serve(bench)
    bench.cluster.down = True
    bench.assign(SLOT, wish("a"), wish("b", 1))
    await bench.steps(5)
    assert bench.state(SLOT, "a") is InstanceState.READY
    assert bench.state(SLOT, "b") is InstanceState.STARTING
    bench.cluster.down = False
    await bench.steps(2)
    assert bench.cluster.names(POD) == sorted([NAME, names.pod_name("b", 0)])


async def test_a_drain_unroutes_waits_for_requests_and_then_deletes(bench: SlotBench) -> None:
    await serve(bench)
    bench.kind.running[0] = 2
    bench.assign(SLOT, wish("a", drain=True))
    await bench.steps(10)
    assert bench.state(SLOT, "a") is InstanceState.DRAINING
    labels = bench.cluster.objects["pods", NAME]["metadata"]["labels"]
    assert labels[names.SERVING] == "draining"
    assert ("delete", "pods", NAME) not in bench.cluster.writes
    bench.kind.running[0] = 0
    await bench.steps(6)
    assert bench.cluster.objects["pods", NAME]["metadata"]["deletionTimestamp"]
    assert bench.state(SLOT, "a") is InstanceState.STOPPING
    bench.cluster.remove(POD, NAME)
    await bench.steps(2)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED


async def test_the_namespace_owns_the_pods_and_an_executor_without_this_right_still_starts_them(
    bench: SlotBench,
) -> None:
    await serve(bench)
    (owner,) = bench.cluster.objects["pods", NAME]["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "v1", "kind": "Namespace", "name": "serving", "uid": "uid-namespace",
        "controller": True,
    }  # fmt: skip
    bench.cluster.no_right.add("namespaces")
    bench.assign(SLOT, wish("a"), wish("b", 1))
    await bench.steps(3)
    other = bench.cluster.objects["pods", names.pod_name("b", 0)]
    assert other["metadata"]["ownerReferences"] == []


async def test_a_deletion_by_another_client_unroutes_at_once_and_starts_again(
    bench: SlotBench,
) -> None:
    await serve(bench)
    await bench.cluster.delete(POD, NAME, 30)
    await bench.steps(2)
    assert bench.state(SLOT, "a") is InstanceState.STARTING
    assert bench.instance(SLOT, "a").reason == "its pod is being deleted"
    await bench.steps(10)
    assert bench.cluster.names(POD) == [NAME]  # The GPUs are not free yet.
    bench.cluster.remove(POD, NAME)
    await bench.steps(3)
    assert bench.cluster.names(POD) == [names.pod_name("a", 1)]


async def test_the_next_executor_adopts_a_serving_pod_and_drains_it_by_its_requests(
    bench: SlotBench, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    await serve(bench)
    heir = SlotBench(tmp_path, bench.cluster, client)
    assert await heir.open() == 1
    heir.kind.running[0] = 3
    heir.assign(SLOT, wish("a", drain=True))
    await heir.steps(10)
    assert heir.state(SLOT, "a") is InstanceState.DRAINING
    assert ("delete", "pods", NAME) not in bench.cluster.writes
    await heir.close()


async def test_an_adopted_pod_that_serves_stays_in_the_routes_of_an_endpoint_picker(
    bench: SlotBench, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    """The heir has no answer of the engine yet, so the instance is not ready again."""
    await serve(bench)
    before = len(bench.cluster.writes)
    heir = SlotBench(tmp_path, bench.cluster, client)
    heir.kind.running[0] = None
    assert await heir.open() == 1
    heir.assign(SLOT, wish("a"))
    await heir.steps(4)
    assert heir.state(SLOT, "a") is InstanceState.STARTING
    assert bench.cluster.writes[before:] == []
    assert bench.cluster.objects["pods", NAME]["metadata"]["labels"][names.SERVING] == "true"
    await heir.close()


@pytest.mark.parametrize("hangs", [False, True], ids=["serves", "hangs"])
async def test_an_adopted_pod_that_started_long_ago_has_time_to_answer(
    bench: SlotBench, tmp_path: Path, client: aiohttp.ClientSession, hangs: bool
) -> None:
    await serve(bench)
    heir = SlotBench(tmp_path, bench.cluster, client)
    heir.kind.running[0] = None if hangs else 0
    heir._now_ms = time.monotonic_ns() // 1_000_000 + 3_600_000
    with mock.patch.object(time, "monotonic_ns", lambda: heir._now_ms * 1_000_000):
        assert await heir.open() == 1
    heir.assign(SLOT, wish("a"))
    await heir.steps(4)
    deleted = ("delete", "pods", NAME)
    assert deleted not in bench.cluster.writes
    state = InstanceState.STARTING if hangs else InstanceState.READY
    assert heir.state(SLOT, "a") is state
    await heir.steps(4, 300_000)
    assert (deleted in bench.cluster.writes) is hangs
    await heir.close()


async def test_a_second_pod_of_an_instance_is_deleted_and_not_adopted(
    bench: SlotBench, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    await serve(bench)
    twin = dict(bench.cluster.objects["pods", NAME])
    twin["metadata"] = {
        **twin["metadata"],
        "name": "twin",
        "creationTimestamp": "2026-01-02T00:00:00Z",
    }
    bench.cluster.put(POD, twin)
    heir = SlotBench(tmp_path, bench.cluster, client)
    assert await heir.open() == 1
    heir.assign(SLOT, wish("a"))
    await heir.steps(2)
    assert ("delete", "pods", "twin") in bench.cluster.writes
    assert ("delete", "pods", NAME) not in bench.cluster.writes
    await heir.close()


async def test_a_pod_whose_launch_cannot_be_read_is_left_alone_and_blocks_its_slot(
    bench: SlotBench, tmp_path: Path, client: aiohttp.ClientSession
) -> None:
    await serve(bench)
    newer = {"metadata": {"annotations": {names.LAUNCH: '{"form": 2}'}}}
    bench.cluster.change(POD, NAME, newer)
    heir = SlotBench(tmp_path, bench.cluster, client)
    assert await heir.open() == 0
    heir.assign(SLOT, wish("b", 1))
    await heir.steps(4)
    assert bench.cluster.names(POD) == [NAME]
    assert "deletionTimestamp" not in bench.cluster.objects["pods", NAME]["metadata"]
    assert heir.state(SLOT, "b") is InstanceState.STARTING
    await heir.close()


_SPOT = {"eks.amazonaws.com/capacityType": "SPOT"}


@pytest.mark.parametrize(
    ("spec", "labels", "waits"),
    [
        ({"unschedulable": True}, {}, True),
        ({"taints": [{"key": "karpenter.sh/disrupted"}]}, {}, True),
        ({"taints": [{"key": "ToBeDeletedByClusterAutoscaler"}]}, {}, True),
        ({"unschedulable": True}, _SPOT, False),
        ({"taints": [{"key": "karpenter.sh/disrupted"}]}, _SPOT, False),
        ({"taints": [{"key": "aws-node-termination-handler/spot-itn"}]}, {}, False),
        ({"taints": [{"key": "remediator.kubernetes.azure.com/unschedulable"}],
          "unschedulable": True}, {}, False),
    ],
)  # fmt: skip
async def test_a_node_that_must_be_emptied_is_a_notice_which_has_a_deadline_if_the_cloud_takes_it(
    bench: SlotBench, spec: dict[str, Any], labels: dict[str, str], waits: bool
) -> None:
    await serve(bench)
    runner = bench.slots.runners[SLOT]
    assert runner.reclaim_left_s() is None
    bench.cluster.put(NODE, {"metadata": {"name": "n0", "labels": labels}, "spec": spec})
    await settle()
    left_s = runner.reclaim_left_s()
    assert left_s is not None
    assert left_s == math.inf if waits else 80 < left_s <= 90


async def test_a_deadline_counts_from_its_own_notice_and_an_uncordoned_node_has_none(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serve(bench)
    runner = bench.slots.runners[SLOT]
    worker = bench.slots.workers[SLOT]
    bench.cluster.put(NODE, {"metadata": {"name": "n0"}, "spec": {"unschedulable": True}})
    await settle()
    worker.on_reclaim_notice(runner.reclaim_left_s())
    await bench.steps(4)
    assert bench.statuses[SLOT].reclaim_ms == NO_DEADLINE_MS
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s + 3600.0)
    taint = {"key": "aws-node-termination-handler/spot-itn"}
    bench.cluster.change(NODE, "n0", {"spec": {"taints": [taint]}})
    await settle()
    assert runner.reclaim_left_s() == 90.0
    bench.cluster.put(NODE, {"metadata": {"name": "n0"}, "spec": {}})
    await settle()
    assert runner.reclaim_left_s() is None


def test_a_pod_without_a_node_is_given_up_after_the_time_that_its_pool_waits() -> None:
    engine = EnginePod(PodLaunch(wish("a"), 0, (8000,), 0), "p", created=True)
    pod = PodView("p", "s", "u", 0.0, unschedulable="0/3 nodes")
    assert end_of(engine, pod, 100.0, 60.0) is None
    assert end_of(engine, pod, 159.0, 60.0) is None
    end = end_of(engine, pod, 160.0, 60.0)
    assert end is not None
    assert (end.reason, end.hopeless, end.remove) == ("no node: 0/3 nodes", True, True)
    at_once = end_of(engine, pod, 101.0, 60.0, "InsufficientCapacity")
    assert at_once is not None
    assert at_once.reason == "no node: InsufficientCapacity"


def test_a_pod_out_of_sight_that_was_never_confirmed_counts_as_alive() -> None:
    engine = EnginePod(PodLaunch(wish("a"), 0, (8000,), 0), "p")
    assert end_of(engine, None, 1.0, 0.0) is None
    engine.created = True
    assert end_of(engine, None, 1.0, 0.0) is not None


async def test_pods_name_their_template_and_a_former_one_can_be_launched_again(
    bench: SlotBench, cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_folder, "_FRESH_S", 0.0)
    await serve(bench)
    former = bench.instance(SLOT, "a").template
    assert former and bench.statuses[SLOT].templates == {"default": former}
    (tmp_path / "pod.yaml").write_text("spec: {containers: [{name: engine, image: f}]}")
    await bench.steps(1)
    present = bench.statuses[SLOT].templates["default"]
    assert present != former == bench.instance(SLOT, "a").template
    # The next executor learns the former template from the pod.
    async with aiohttp.ClientSession() as client:
        later = SlotBench(tmp_path, cluster, client, template="image: f")
        assert await later.open() == 1
        back = replace(wish("b", 1), version=f"e.{former}-m")
        lost = replace(wish("d", 3), version="e.0000000000-m")
        later.assign(SLOT, wish("a"), back, wish("c", 2), lost)
        await later.steps(2)
        seen = {i.instance: i.template for i in later.statuses[SLOT].instances}
        assert seen == {"a": former, "b": former, "c": present, "d": present}
        pods = {name: cluster.objects["pods", names.pod_name(name, 0)] for name in "abcd"}
        images = {name: pod["spec"]["containers"][0]["image"] for name, pod in pods.items()}
        assert images == {"a": "e", "b": "e", "c": "f", "d": "f"}
        await later.close()


async def test_a_pool_without_a_valid_template_is_a_fault_and_has_no_digest(
    bench: SlotBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_folder, "_FRESH_S", 0.0)
    await serve(bench)
    valid = (tmp_path / "pod.yaml").read_text()
    (tmp_path / "pod.yaml").write_text("spec: {containers: []}")
    await bench.steps(2)
    assert bench.statuses[SLOT].templates == {}
    assert bench.instance(SLOT, "a").template
    (fault,) = bench.statuses[SLOT].faults
    assert fault.startswith("no pods in ") and "pod.yaml: template.spec.containers" in fault
    (tmp_path / "pod.yaml").unlink()
    await bench.steps(2)
    (fault,) = bench.statuses[SLOT].faults
    assert "allowed: a folder with pod.yaml" in fault
    (tmp_path / "pod.yaml").write_text(valid)
    await bench.steps(2)
    assert bench.statuses[SLOT].faults == ()


async def test_events_count_the_serving_pods_of_each_version(bench: SlotBench) -> None:
    async def version(name: str, version: str, gpu: int) -> None:
        bench.assign(SLOT, *wishes, replace(wish(name, gpu), version=version))
        wishes.append(replace(wish(name, gpu), version=version))
        await bench.steps(2)
        bench.cluster.run_pod(names.pod_name(name, 0), f"10.0.0.{gpu + 1}")
        await bench.steps(4)

    wishes: list[DesiredInstance] = []
    await version("a", "e-1", 0)
    await version("b", "e-1", 1)
    await version("c", "e-2", 2)
    bench.assign(SLOT, replace(wishes[0], drain=True), *wishes[1:])
    await bench.steps(4)
    texts = [
        (event["reason"], event["involvedObject"]["name"], event["message"], event["type"])
        for (kind, _), event in bench.cluster.objects.items()
        if kind == "events"
    ]
    assert texts[0] == (
        "Starting",
        names.pod_name("a", 0),
        f"starts m on {SLOT} with 1 GPU; engine default, version e-1",
        "Normal",
    )
    serves, drains = texts[-2:]
    assert serves == (
        "Serving",
        names.pod_name("c", 0),
        "serves m; engine default, version e-2; "
        "pods that serve m: 1 of version e-2, 2 of version e-1",
        "Normal",
    )
    assert drains == (
        "Draining",
        names.pod_name("a", 0),
        "left the routes of m and finishes its requests; engine default, version e-1; "
        "pods that serve m: 1 of version e-1, 1 of version e-2",
        "Normal",
    )
