"""Mode `scale` in memory: claims, removals, lost answers and other managers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors.kubernetes import kube_names as names
from executors.kubernetes import pod_fleet, surplus_pods, workload_scaler
from executors.kubernetes.kube_kinds import AUTOSCALER, DEPLOYMENT, EVENT, POD
from tests.unit.kubernetes.fake_cluster import FakeCluster
from tests.unit.kubernetes.slot_bench import POOL, SLOT, SlotBench, settle, wish
from topics.fleet import InstanceState


class Workload(FakeCluster):
    """A Deployment "e" with its controller: pods follow the replicas. node: that of new pods, "" =
    the scheduler finds none."""

    node = "n0"

    def __init__(self, replicas: int) -> None:
        super().__init__()
        notes = {names.MANAGED: "true", names.MODEL: "m", names.POOL: POOL}
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": "e"}}}
        self.put(DEPLOYMENT, {"metadata": {"name": "e", "annotations": notes}, "spec": spec})
        self.made = 0
        self.follow()

    @property
    def replicas(self) -> int:
        return int(self.objects["deployments", "e"]["spec"]["replicas"])

    def follow(self) -> None:
        """Make or remove pods, those without a node first, then those of the lowest deletion
        cost."""
        while len(self.pods()) < self.replicas:
            self.made += 1
            name = f"e-{self.made}"
            self.put(POD, {"metadata": {"name": name, "labels": {"app": "e"}}, "spec": {}})
            if self.node:
                self.run_pod(name, f"10.0.0.{self.made}", self.node)
            else:
                self.refuse_pod(name, "0/1 nodes")
        while len(self.pods()) > self.replicas:
            self.remove(
                POD, min(self.pods(), key=lambda name: (self._has_node(name), self._cost(name)))
            )

    def pods(self) -> list[str]:
        """Names of the Deployment's pods."""
        return [name for name in self.names(POD) if name.startswith("e-")]

    def _has_node(self, name: str) -> bool:
        return "nodeName" in self.objects["pods", name]["spec"]

    def _cost(self, name: str) -> int:
        notes = self.objects["pods", name]["metadata"].get("annotations") or {}
        return int(notes.get(names.DELETION_COST, 0))


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_EVERY_S", "_PAUSE_S", "_COST_SEEN_S", "_COPY_EVERY_S"):
        monkeypatch.setattr(workload_scaler, name, 0.0)
    monkeypatch.setattr(pod_fleet, "_LEAST_PAUSE_S", 0.0)
    monkeypatch.setattr(pod_fleet, "_MOST_PAUSE_S", 0.0)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SlotBench]:
    async with aiohttp.ClientSession() as client:
        made = SlotBench(tmp_path, Workload(2), client, "scale")
        await made.open()
        yield made
        await made.close()


async def rounds(bench: SlotBench, count: int = 6) -> None:
    cluster = bench.cluster
    assert isinstance(cluster, Workload)
    for _ in range(count):
        await bench.steps(1)
        cluster.follow()
        await settle()


def writes(cluster: FakeCluster) -> list[tuple[str, str, str]]:
    return [write for write in cluster.writes if write[0] == "scale"]


async def test_the_pod_that_the_plan_chose_leaves(bench: SlotBench) -> None:
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    assert bench.state(SLOT, "a") is InstanceState.READY
    assert writes(bench.cluster) == []  # both pods ran before
    chosen = bench.instance(SLOT, "a").endpoint
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1))
    await rounds(bench, 12)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED
    left = bench.instance(SLOT, "b").endpoint
    assert left != chosen
    assert writes(bench.cluster) == [("scale", "deployments", "e")]


async def test_an_instance_whose_pod_left_in_place_of_the_chosen_one_takes_that_pod(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    chosen = bench.instance(SLOT, "a").endpoint
    cluster._cost = lambda name: -Workload._cost(cluster, name)
    monkeypatch.setattr(workload_scaler, "_VICTIM_S", 1e9)
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1))
    await rounds(bench, 20)
    assert bench.state(SLOT, "b") is InstanceState.STARTING
    assert cluster.replicas == 1
    monkeypatch.setattr(workload_scaler, "_VICTIM_S", -1.0)
    await rounds(bench, 12)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED
    assert bench.state(SLOT, "b") is InstanceState.READY
    assert bench.instance(SLOT, "b").endpoint == chosen
    assert cluster.replicas == len(cluster.names(POD)) == 1


async def test_a_lost_answer_removes_no_second_pod(bench: SlotBench) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    original = cluster.write_scale

    async def lossy(*words: Any) -> Any:
        cluster.lost_answers = 1
        return await original(*words)

    cluster.write_scale = lossy
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1))
    await rounds(bench, 12)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED
    assert bench.state(SLOT, "b") is InstanceState.READY
    assert cluster.replicas == 1
    assert len(writes(cluster)) == 1


async def test_a_lost_answer_is_not_mistaken_for_another_clients_write(bench: SlotBench) -> None:
    cluster: Any = bench.cluster
    wishes = [wish("a", 0), wish("b", 1)]
    bench.assign(SLOT, *wishes, wish("c", 2))
    await rounds(bench, 8)
    assert cluster.replicas == 3
    original = cluster.write_scale

    async def lossy(*words: Any) -> Any:
        cluster.lost_answers = 1
        cluster.write_scale = original
        return await original(*words)

    cluster.write_scale = lossy
    bench.assign(SLOT, *wishes, wish("c", 2), wish("d", 3))
    await rounds(bench, 8)
    assert cluster.replicas == 4
    assert bench.state(SLOT, "d") is InstanceState.READY
    assert len(writes(cluster)) == 2


async def test_a_pod_that_never_gets_ready_does_not_hold_up_removals(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    broken = {"metadata": {"name": "e-broken", "labels": {"app": "e"}}, "spec": {"nodeName": "n"}}
    cluster.put(POD, broken)
    cluster.change(DEPLOYMENT, "e", {"spec": {"replicas": 3}})
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1))
    await rounds(bench, 8)
    assert cluster.replicas == 3  # e-broken would leave instead
    monkeypatch.setattr(workload_scaler, "_PATIENCE_S", 0.0)
    await rounds(bench, 8)
    assert cluster.replicas == 2


@pytest.mark.parametrize("gone", [False, True], ids=["terminating", "deleted"])
async def test_a_rollout_of_the_workload_keeps_its_instances_ready(
    bench: SlotBench, gone: bool
) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench)
    old = cluster.names(POD)
    for number, name in enumerate(old):
        cluster.put(POD, {"metadata": {"name": f"new-{number}", "labels": {"app": "e"}}})
        cluster.run_pod(f"new-{number}", f"10.7.0.{number}")
        if gone:
            cluster.remove(POD, name)
        else:
            deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
            cluster.change(POD, name, deleted)
        for _ in range(3):
            await bench.steps(1)
            states = {bench.state(SLOT, one) for one in "ab"}
            assert states == {InstanceState.READY}
    assert {bench.instance(SLOT, one).endpoint[:4] for one in "ab"} == {"10.7"}
    assert {bench.instance(SLOT, one).restarts for one in "ab"} == {0}
    labels = [cluster.objects["pods", f"new-{n}"]["metadata"]["labels"] for n in (0, 1)]
    assert {one[names.INSTANCE] for one in labels} == {"a", "b"}
    assert writes(cluster) == []


async def test_growth_beyond_the_running_pods_writes_the_replicas(bench: SlotBench) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
    await rounds(bench, 8)
    assert cluster.replicas == 3
    assert bench.state(SLOT, "c") is InstanceState.READY


async def test_pods_beyond_the_plan_are_drained_once_the_plan_is_ready(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = bench.cluster
    await rounds(bench, 3)
    assert cluster.writes == []  # without a plan nothing is written
    bench.kind.running[0] = 1
    bench.assign(SLOT, wish("a", 0))
    await rounds(bench, 8)
    assert cluster.replicas == 2
    monkeypatch.setattr(surplus_pods, "_SETTLED_S", 0.0)
    await rounds(bench, 8)
    assert cluster.replicas == 2  # it still has a request
    bench.kind.running[0] = 0
    await rounds(bench, 8)
    assert cluster.replicas == 1
    assert bench.state(SLOT, "a") is InstanceState.READY


async def test_a_pod_beyond_the_plan_is_given_to_an_instance_that_needs_one(
    bench: SlotBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = bench.cluster
    monkeypatch.setattr(surplus_pods, "_SETTLED_S", 0.0)
    bench.kind.running[0] = 1
    bench.assign(SLOT, wish("a", 0))
    await rounds(bench, 8)
    labels = [cluster.objects["pods", n]["metadata"]["labels"] for n in cluster.names(POD)]
    assert sorted(str(one.get(names.SERVING)) for one in labels) == ["draining", "true"]
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench, 8)
    assert bench.state(SLOT, "b") is InstanceState.READY
    assert writes(cluster) == []
    labels = [cluster.objects["pods", n]["metadata"]["labels"] for n in cluster.names(POD)]
    assert [one.get(names.SERVING) for one in labels] == ["true", "true"]


async def test_an_autoscaler_is_named_before_any_write(bench: SlotBench) -> None:
    ref = {"kind": "Deployment", "name": "e"}
    bench.cluster.put(AUTOSCALER, {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": ref}})
    bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
    await rounds(bench, 8)
    states = {i.instance: i for i in bench.statuses[SLOT].instances}
    failed = [i for i in states.values() if i.state is InstanceState.FAILED]
    assert len(failed) == 1
    assert "HorizontalPodAutoscaler h scales deployments/e" in failed[0].reason
    assert writes(bench.cluster) == []
    events = [bench.cluster.objects["events", name] for name in bench.cluster.names(EVENT)]
    assert [one["reason"] for one in events].count("NotScaled") == 1


async def test_replicas_that_another_client_sets_back_end_shoals_writes(bench: SlotBench) -> None:
    cluster: Any = bench.cluster
    bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
    for _ in range(10):
        await bench.steps(1)
        if cluster.replicas == 3:
            cluster.change(DEPLOYMENT, "e", {"spec": {"replicas": 2}})
        await settle()
    assert len(writes(cluster)) == 1
    failed = [i for i in bench.statuses[SLOT].instances if i.state is InstanceState.FAILED]
    assert "set deployments/e to 2 replicas after Shoal wrote 3" in failed[0].reason


async def test_a_plan_for_other_gpus_than_the_pods_have_is_refused(bench: SlotBench) -> None:
    container = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    template = {"spec": {"containers": [container]}}
    bench.cluster.change(DEPLOYMENT, "e", {"spec": {"template": template}})
    await settle()
    bench.assign(SLOT, wish("a", 0, 1))
    await rounds(bench, 2)
    assert "2 GPUs" in bench.instance(SLOT, "a").reason


async def test_a_model_without_a_workload_says_which_annotations_are_missing(
    bench: SlotBench,
) -> None:
    bench.cluster.change(DEPLOYMENT, "e", {"metadata": {"annotations": {names.MODEL: "other"}}})
    await settle()
    bench.assign(SLOT, wish("a", 0))
    await rounds(bench, 2)
    assert 'shoal.dev/managed: "true"' in bench.instance(SLOT, "a").reason


async def test_the_launch_basis_follows_the_workload_except_its_replicas(bench: SlotBench) -> None:
    async def basis() -> str:
        await bench.steps(2)
        bases = {status.launch_basis for status in bench.statuses.values()}
        assert len(bases) == 1
        return bases.pop()

    before = await basis()
    bench.cluster.change(DEPLOYMENT, "e", {"spec": {"replicas": 3}})
    assert before and await basis() == before
    gpus = {"name": "e", "resources": {"limits": {"nvidia.com/gpu": "2"}}}
    template = {"spec": {"containers": [gpus]}}
    bench.cluster.change(DEPLOYMENT, "e", {"spec": {"template": template}})
    assert await basis() != before


class BlueGreen(Workload):
    """Two Deployments of one model: the opted-in "e", and "green" with two ready pods."""

    def __init__(self) -> None:
        super().__init__(2)
        labels = {"app": "green"}
        spec = {"replicas": 2, "selector": {"matchLabels": labels}}
        self.put(DEPLOYMENT, {"metadata": {"name": "green"}, "spec": spec})
        for k in (1, 2):
            self.put(POD, {"metadata": {"name": f"green-{k}", "labels": labels}, "spec": {}})
            self.run_pod(f"green-{k}", f"10.1.0.{k}")

    def follow(self) -> None:
        """Nothing: no test changes the replicas."""
        if not self.made:
            super().follow()

    def opt(self, name: str, managed: str | None) -> None:
        """Opt a Deployment in or out, as its owner does."""
        notes = {names.MANAGED: managed, names.MODEL: "m", names.POOL: POOL}
        self.change(DEPLOYMENT, name, {"metadata": {"annotations": notes}})


async def test_a_green_deployment_takes_over_from_a_blue_one_without_a_gap(tmp_path: Path) -> None:
    """The owner opts the green one in and the blue one out. Each instance stays ready, first at its
    blue pod and then at a green one. The blue pods stay until their owner removes them."""
    async with aiohttp.ClientSession() as client:
        cluster = BlueGreen()
        bench = SlotBench(tmp_path, cluster, client, "scale")
        await bench.open()
        bench.assign(SLOT, wish("a", 0), wish("b", 1))
        await rounds(bench)
        assert {bench.instance(SLOT, one).endpoint[:5] for one in "ab"} == {"10.0."}
        cluster.opt("green", "true")
        cluster.opt("e", None)
        for _ in range(8):
            await rounds(bench, 1)
            assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.READY}
        assert {bench.instance(SLOT, one).endpoint[:7] for one in "ab"} == {"10.1.0."}
        blue = [cluster.objects["pods", f"e-{k}"]["metadata"] for k in (1, 2)]
        assert not any(names.LAUNCH in (one.get("annotations") or {}) for one in blue)
        cluster.remove(DEPLOYMENT, "e")
        for k in (1, 2):
            cluster.remove(POD, f"e-{k}")
        await rounds(bench)
        assert {bench.state(SLOT, one) for one in "ab"} == {InstanceState.READY}
        assert writes(cluster) == []
        await bench.close()


async def test_a_green_deployment_without_a_ready_pod_takes_nothing(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as client:
        cluster = BlueGreen()
        for k in (1, 2):
            cluster.remove(POD, f"green-{k}")
        bench = SlotBench(tmp_path, cluster, client, "scale")
        await bench.open()
        bench.assign(SLOT, wish("a", 0))
        await rounds(bench)
        endpoint = bench.instance(SLOT, "a").endpoint
        cluster.opt("green", "true")
        cluster.opt("e", None)
        await rounds(bench)
        assert bench.state(SLOT, "a") is InstanceState.READY
        assert bench.instance(SLOT, "a").endpoint == endpoint
        await bench.close()
