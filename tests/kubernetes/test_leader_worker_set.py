"""Mode `scale` and a LeaderWorkerSet, on a real control plane.

The controller of LeaderWorkerSets is small and in this file: it makes the same StatefulSets as the
real one, with the same names and owners, and Kubernetes makes the pods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.definitions import install_definitions
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, PODS, workload
from topics.fleet import DesiredInstance, InstanceState
from topics.instance_ranks import GangRank, GangStage

ACCOUNT = "shoal-scale"
SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/serving/leaderworkersets"
STATEFUL = f"{APPS}/statefulsets"
POOL = {"us/l4/owned": {"mode": "scale", "nodes": {"pool": "lws"}}}
SLOTS = [f"us.l4.owned.{n}" for n in range(4)]
STAGES = (GangStage("L4", 1, 16), GangStage("L4", 1, 16))
SIZE = 2


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Any:
    nodes = [f"lws-{n}" for n in range(4)]
    name = plane.start_kubelet(nodes, gpus=1, labels=("pool=lws",), third=95)
    yield name
    plane.stop_process(name)


@pytest.fixture
async def groups(admin: RawApi) -> AsyncIterator[None]:
    """A LeaderWorkerSet "engine" with one group of two pods, and its controller."""
    await install_definitions(admin)
    notes = workload(1)["metadata"]["annotations"]
    template = workload(1)["spec"]["template"]
    template["spec"]["nodeSelector"] = {"pool": "lws"}
    spec = {"replicas": 1, "leaderWorkerTemplate": {"size": SIZE, "workerTemplate": template}}
    made = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet",
        "metadata": {"name": "engine", "annotations": notes}, "spec": spec,
    }  # fmt: skip
    await admin.post(SETS, made)
    working = asyncio.create_task(control(admin))
    yield
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await admin.delete(f"{SETS}/engine")


async def control(admin: RawApi) -> None:
    """Keep the StatefulSets of leaders and of each group's workers."""
    while True:
        owner = await admin.get(f"{SETS}/engine")
        template = owner["spec"]["leaderWorkerTemplate"]["workerTemplate"]
        leaders = _stateful_set("engine", owner, template, owner["spec"]["replicas"])
        if await admin.get(f"{STATEFUL}/engine") is None:
            await admin.post(STATEFUL, leaders)
        else:
            count = {"spec": {"replicas": owner["spec"]["replicas"]}}
            await admin.patch(f"{STATEFUL}/engine", count)
        for pod in (await admin.get(PODS))["items"]:
            name = pod["metadata"]["name"]
            leads = name.count("-") == 1 and not pod["metadata"].get("deletionTimestamp")
            if leads and await admin.get(f"{STATEFUL}/{name}") is None:
                found = {**pod, "apiVersion": "v1", "kind": "Pod"}
                workers = _stateful_set(name, found, template, SIZE - 1)
                workers["spec"]["ordinals"] = {"start": 1}
                await admin.post(STATEFUL, workers)
        await asyncio.sleep(0.2)


def _stateful_set(name: str, owner: Any, template: Any, replicas: int) -> Any:
    labels = {"group": name}
    pod = {**template, "metadata": {"labels": {**template["metadata"]["labels"], **labels}}}
    reference = {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "controller": True,
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
    }  # fmt: skip
    return {
        "metadata": {"name": name, "ownerReferences": [reference]},
        "spec": {
            "replicas": replicas, "serviceName": name, "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels}, "template": pod,
        },
    }  # fmt: skip


def ranks(name: str) -> tuple[DesiredInstance, DesiredInstance]:
    """Both ranks of an instance over two nodes."""
    first = replace(wish(f"{name}.0"), gang=GangRank(f"{name}.0", 0, STAGES))
    return first, replace(wish(f"{name}.1"), gang=GangRank(f"{name}.0", 1, STAGES))


async def begin(bench: Bench, name: str, slots: list[str]) -> None:
    """Start an instance: rank 1 as soon as rank 0 has an address, as the controller does."""
    first, second = ranks(name)
    bench.assign(slots[0], first)
    await bench.until(lambda: address(bench, slots[0], first.instance))
    assert second.gang is not None
    joined = replace(second.gang, rendezvous=address(bench, slots[0], first.instance))
    bench.assign(slots[1], replace(second, gang=joined))


def address(bench: Bench, slot: str, instance: str) -> str:
    found = bench.instance(slot, instance)
    return found.gang.rendezvous if found is not None and found.gang is not None else ""


async def claims(admin: RawApi) -> dict[str, str]:
    """Instance by pod."""
    return {
        pod["metadata"]["name"]: pod["metadata"]["labels"].get("shoal.dev/instance", "")
        for pod in (await admin.get(PODS))["items"]
        if not pod["metadata"].get("deletionTimestamp")
    }


async def replicas(admin: RawApi) -> int:
    return int((await admin.get(f"{SETS}/engine"))["spec"]["replicas"])


async def test_a_group_of_pods_is_one_replica_that_comes_and_leaves_as_a_whole(
    client: KubeClient, admin: RawApi, groups: None, tmp_path: Path
) -> None:
    file = config_file(tmp_path, POOL, slots=4)
    async with Bench(file, client) as bench:
        await begin(bench, "a", SLOTS[:2])
        await bench.until(lambda: bench.ready(SLOTS[0], ["a.0"]) and bench.ready(SLOTS[1], ["a.1"]))
        assert await claims(admin) == {"engine-0": "a.0", "engine-0-1": "a.1"}
        assert await replicas(admin) == 1
        await begin(bench, "b", SLOTS[2:])
        await bench.until(lambda: bench.ready(SLOTS[2], ["b.0"]) and bench.ready(SLOTS[3], ["b.1"]))
        assert await replicas(admin) == 2
        assert await claims(admin) == {
            "engine-0": "a.0", "engine-0-1": "a.1", "engine-1": "b.0", "engine-1-1": "b.1",
        }  # fmt: skip
    async with Bench(file, client) as bench:
        assert bench.adopted == 4
        first, second = ranks("a")
        for slot, rank in zip(SLOTS, (*ranks("a"), *ranks("b")), strict=True):
            bench.assign(slot, rank)
        each = [["a.0"], ["a.1"], ["b.0"], ["b.1"]]
        await bench.until(lambda: all(map(bench.ready, SLOTS, each)))
        # the set removes its highest group, so both ranks of "a" move there and leave with it
        bench.drain(SLOTS[0], first.instance)
        bench.drain(SLOTS[1], second.instance)
        await bench.until(
            lambda: (
                bench.is_in(SLOTS[0], first.instance, InstanceState.STOPPED)
                and bench.is_in(SLOTS[1], second.instance, InstanceState.STOPPED)
            )
        )
        assert await replicas(admin) == 1
        assert bench.ready(SLOTS[2], ["b.0"]) and bench.ready(SLOTS[3], ["b.1"])
        async with asyncio.timeout(20):
            while await claims(admin) != {"engine-0": "b.0", "engine-0-1": "b.1"}:
                await asyncio.sleep(0.2)


async def test_an_instance_of_another_size_is_refused(
    client: KubeClient, admin: RawApi, groups: None, tmp_path: Path
) -> None:
    async with Bench(config_file(tmp_path, POOL, slots=4), client) as bench:
        bench.assign(SLOTS[0], wish("single"))
        await bench.until(lambda: "1 nodes" in reason(bench, SLOTS[0], "single"))
        assert "leaderworkersets/engine" in reason(bench, SLOTS[0], "single")
        assert await replicas(admin) == 1


def reason(bench: Bench, slot: str, name: str) -> str:
    found = bench.instance(slot, name)
    return found.reason if found is not None else ""
