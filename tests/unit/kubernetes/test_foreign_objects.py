"""Mode `scale` and objects of other owners: Shoal claims, drains and counts none of them."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from executors.kubernetes import kube_names as names
from executors.kubernetes import object_cache, surplus_pods
from executors.kubernetes.kube_client import Manifest, Scale
from executors.kubernetes.kube_errors import kube_error
from executors.kubernetes.kube_kinds import DEPLOYMENT, POD, Kind
from executors.kubernetes.pod_template import PodLaunch, dump_launch
from tests.unit.kubernetes.fake_cluster import FakeCluster
from tests.unit.kubernetes.slot_bench import POOL, SLOT, SlotBench, settle, wish
from tests.unit.kubernetes.test_workload_scaler import Workload, fast, rounds, writes
from topics.fleet import InstanceState

__all__ = ["fast"]
SET = Kind("example.com", "v1", "EngineSet", "enginesets")
STRANGERS: dict[str, list[Manifest]] = {
    "job": [{"apiVersion": "batch/v1", "kind": "Job", "name": "bench", "controller": True}],
    "canary": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "e-canary-9b",
                "controller": True}],
    "debug copy": [],
}  # fmt: skip


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[SlotBench]:
    async with aiohttp.ClientSession() as client:
        made = SlotBench(tmp_path, Workload(1), client, "scale")
        await made.open()
        yield made
        await made.close()


def stranger(name: str, owners: list[Manifest]) -> Manifest:
    """An older pod with the labels of the engines."""
    meta = {"name": name, "labels": {"app": "e"}, "ownerReferences": owners,
            "creationTimestamp": "2025-01-01T00:00:00Z"}  # fmt: skip
    return {"metadata": meta, "spec": {}}


@pytest.mark.parametrize("owners", STRANGERS.values(), ids=STRANGERS)
async def test_a_foreign_pod_with_the_labels_of_the_engines_is_never_touched(
    bench: SlotBench, owners: list[Manifest], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = bench.cluster
    cluster.put(POD, stranger("theirs", owners))
    cluster.run_pod("theirs", "10.9.9.9")
    before = cluster.objects["pods", "theirs"]
    cluster.follow = lambda: follow(cluster)
    monkeypatch.setattr(surplus_pods, "_SETTLED_S", 0.0)
    bench.assign(SLOT, wish("a", 0), wish("b", 1))
    await rounds(bench, 10)
    assert bench.state(SLOT, "a") is bench.state(SLOT, "b") is InstanceState.READY
    assert cluster.replicas == 2
    bench.assign(SLOT, wish("a", 0, drain=True), wish("b", 1))
    await rounds(bench, 12)
    assert bench.state(SLOT, "a") is InstanceState.STOPPED
    assert bench.state(SLOT, "b") is InstanceState.READY
    assert cluster.replicas == 1
    assert cluster.objects["pods", "theirs"] == before


def follow(cluster: Workload) -> None:
    """The controller counts its own pods only."""
    theirs = cluster.objects.pop(("pods", "theirs"))
    Workload.follow(cluster)
    cluster.objects["pods", "theirs"] = theirs


async def test_a_selector_by_expressions_owns_its_pods(bench: SlotBench) -> None:
    cluster: Any = bench.cluster
    sets = [{"key": "app", "operator": "In", "values": ["e", "other"]},
            {"key": "tier", "operator": "DoesNotExist"}]  # fmt: skip
    selector = {"matchLabels": None, "matchExpressions": sets}
    cluster.change(DEPLOYMENT, "e", {"spec": {"selector": selector}})
    bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
    await rounds(bench, 10)
    states = {bench.state(SLOT, name) for name in "abc"}
    assert states == {InstanceState.READY}
    assert cluster.replicas == 3


@pytest.mark.parametrize("selector", ["app in (e)", ""], ids=["by selector", "by controller"])
async def test_a_further_kind_is_scaled_by_its_scale_whatever_its_fields(
    tmp_path: Path, selector: str
) -> None:
    cluster = EngineSets(selector)
    async with aiohttp.ClientSession() as client:
        kinds = ["example.com/v1/EngineSet/enginesets"]
        bench = SlotBench(tmp_path, cluster, client, "scale", scale_kinds=kinds)
        await bench.open()
        bench.assign(SLOT, wish("a", 0), wish("b", 1), wish("c", 2))
        for _ in range(12):
            await bench.steps(1)
            cluster.follow()
            await settle()
        assert {bench.state(SLOT, name) for name in "abc"} == {InstanceState.READY}
        assert cluster.size == 3
        assert writes(cluster) == [("scale", "enginesets", "e")]
        heir = SlotBench(tmp_path, cluster, client, "scale", scale_kinds=kinds)
        assert await heir.open() == 3
        await heir.close()
        await bench.close()


async def test_a_further_kind_without_rights_on_its_scale_says_so(tmp_path: Path) -> None:
    cluster = EngineSets("app=e")
    cluster.readable = False
    async with aiohttp.ClientSession() as client:
        kinds = ["example.com/v1/EngineSet/enginesets"]
        bench = SlotBench(tmp_path, cluster, client, "scale", scale_kinds=kinds)
        await bench.open()
        bench.assign(SLOT, wish("a", 0))
        await bench.steps(4)
        assert bench.state(SLOT, "a") is InstanceState.FAILED
        why = "/scale of enginesets/e cannot be read: not allowed"
        assert why in bench.instance(SLOT, "a").reason
        await bench.close()


@pytest.mark.parametrize("bad", ["1k", "1x"], ids=["readable", "unreadable"])
@pytest.mark.parametrize("early", [True, False], ids=["before", "later"])
async def test_a_workload_of_another_owner_never_ends_the_view_of_the_others(
    tmp_path: Path, bad: str, early: bool
) -> None:
    cluster = Workload(1)
    notes = {names.MANAGED: "true", names.MODEL: "other", names.POOL: POOL}
    limits = {"nvidia.com/gpu": bad}
    spec = {"template": {"spec": {"containers": [{"resources": {"limits": limits}}]}}}
    poison = {"metadata": {"name": "poison", "annotations": notes}, "spec": spec}
    if early:
        cluster.put(DEPLOYMENT, poison)
    async with aiohttp.ClientSession() as client:
        bench = SlotBench(tmp_path, cluster, client, "scale")
        await bench.open()
        assert bench.slots.scaler is not None and bench.slots.scaler.workloads.synced
        if not early:
            cluster.put(DEPLOYMENT, poison)
        bench.assign(SLOT, wish("a", 0), wish("b", 1))
        await rounds(bench, 8)
        assert bench.state(SLOT, "a") is bench.state(SLOT, "b") is InstanceState.READY
        faults = bench.statuses[SLOT].faults
        why = "deployments/poison cannot be read: ValueError: '1x' is no quantity"
        assert faults == ((why,) if bad == "1x" else ())
        await bench.close()


def claimed(name: str, slot: str, serving: str) -> Manifest:
    """A Deployment's pod with the labels of mode `scale`."""
    labels = {"app": "x", "team": "t", names.SLOT: slot, names.INSTANCE: "i", names.GROUP: "g.1",
              names.SERVING: serving}  # fmt: skip
    notes = {names.LAUNCH: dump_launch(PodLaunch(wish(name), 0, (8000,), 0)), "note": "n",
             names.DELETION_COST: "-1000000"}  # fmt: skip
    owner = {"kind": "ReplicaSet", "name": "x-1", "controller": True}
    meta = {"name": name, "labels": labels, "annotations": notes, "ownerReferences": [owner]}
    return {"metadata": meta, "spec": {"nodeName": "n0"}}


@pytest.mark.parametrize("mode", ["pods", "scale"])
async def test_labels_of_an_earlier_mode_are_removed_and_the_pod_stays(
    tmp_path: Path, mode: str
) -> None:
    cluster = FakeCluster()
    cluster.put(POD, claimed("a", SLOT, "draining"))
    cluster.put(POD, claimed("b", SLOT, "true"))
    cluster.put(POD, claimed("c", "us.other.owned.0", "true"))  # of another executor
    other = copy.deepcopy(cluster.objects["pods", "c"])
    async with aiohttp.ClientSession() as client:
        bench = SlotBench(tmp_path, cluster, client, mode)
        assert await bench.open() == 0
        await bench.steps(4)
        for name in "ab":
            meta = cluster.objects["pods", name]["metadata"]
            assert meta["labels"] == {
                "app": "x", "team": "t", names.SERVING: "true", "pod-template-hash": "1"
            }  # fmt: skip
            assert meta["annotations"] == {"note": "n"}
            assert "deletionTimestamp" not in meta
        assert cluster.objects["pods", "c"] == other
        assert {verb for verb, plural, _ in cluster.writes if plural == "pods"} == {"patch"}
        await bench.close()


async def test_a_claimed_pod_of_another_owner_is_no_pod_of_mode_pods(tmp_path: Path) -> None:
    """An executor with pools of both modes sees the pods of all owners."""
    cluster = FakeCluster()
    pools = {POOL: {"mode": "pods", "nodes": {"pool": "l4"}},
             "us/a/owned": {"mode": "scale", "nodes": {"pool": "a"}}}  # fmt: skip
    async with aiohttp.ClientSession() as client:
        bench = SlotBench(tmp_path, cluster, client, pools=pools)
        bench.slots.start()
        await settle()
        cluster.put(POD, claimed("theirs", SLOT, "true"))
        await settle()
        assert sum(worker.restore() for worker in bench.slots.workers.values()) == 0
        bench.assign(SLOT, wish("a"))
        await bench.steps(3)
        assert set(cluster.names(POD)) == {"theirs", names.pod_name("a", 0)}
        assert ("delete", "pods", "theirs") not in cluster.writes
        await bench.close()


async def test_a_kind_that_may_not_be_listed_is_a_fault_and_stops_no_other_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster: Any = Workload(1)
    cluster.put(POD, claimed("theirs", SLOT, "true"))
    original = cluster.list_objects

    async def list_objects(kind: Kind, labels: str = "", everywhere: bool = False) -> Any:
        if kind == SET:
            raise kube_error(403, "Forbidden", "no right")
        return await original(kind, labels, everywhere)

    cluster.list_objects = list_objects
    cluster.follow = lambda: follow(cluster)
    async with aiohttp.ClientSession() as client:
        kinds = ["example.com/v1/EngineSet/enginesets"]
        bench = SlotBench(tmp_path, cluster, client, "scale", scale_kinds=kinds)
        bench.slots.start()
        await settle()
        assert bench.slots.scaler is not None and not bench.slots.scaler.workloads.synced
        monkeypatch.setattr(object_cache, "_DENIED_S", 0.0)
        assert bench.slots.scaler.workloads.synced
        assert sum(worker.restore() for worker in bench.slots.workers.values()) == 0
        bench.assign(SLOT, wish("a", 0), wish("b", 1))
        await rounds(bench, 8)
        assert bench.state(SLOT, "b") is InstanceState.READY
        assert bench.statuses[SLOT].faults == ("cannot read enginesets: no right",)
        # the pod may belong to a workload of this kind
        assert cluster.objects["pods", "theirs"]["metadata"]["labels"][names.SLOT] == SLOT
        await bench.close()


class EngineSets(FakeCluster):
    """An EngineSet "e", whose size is not in `spec.replicas`, with its controller."""

    def __init__(self, selector: str) -> None:
        super().__init__()
        notes = {names.MANAGED: "true", names.MODEL: "m", names.POOL: POOL}
        status = {"selector": selector} if selector else {}
        self.put(SET, {"metadata": {"name": "e", "annotations": notes}, "spec": {"size": 2},
                       "status": status})  # fmt: skip
        self.readable = True
        self._owned = not selector
        self.follow()

    @property
    def size(self) -> int:
        return int(self.objects["enginesets", "e"]["spec"]["size"])

    def follow(self) -> None:
        ref = {"apiVersion": "example.com/v1", "kind": "EngineSet", "name": "e", "controller": True}
        for number in range(len(self.names(POD)), self.size):
            meta = {"name": f"e-{number}", "labels": {"app": "e"},
                    "ownerReferences": [ref] if self._owned else []}  # fmt: skip
            self.put(POD, {"metadata": meta, "spec": {}})
            self.run_pod(f"e-{number}", f"10.0.0.{number + 1}")

    async def read_scale(self, kind: Kind, name: str) -> Any:

        if not self.readable:
            raise kube_error(403, "Forbidden", "not allowed")
        found = self.objects["enginesets", name]
        version = found["metadata"]["resourceVersion"]
        return Scale(self.size, version, found["status"].get("selector", ""))

    async def write_scale(self, kind: Kind, name: str, replicas: int, version: str) -> Any:
        self.writes.append(("scale", kind.plural, name))
        self.change(SET, name, {"spec": {"size": replicas}})
        return await self.read_scale(kind, name)
