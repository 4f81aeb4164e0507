"""Mode `scale` and objects of other owners, on a real control plane."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi, serves
from tests.kubernetes.test_scale_mode import APPS, PODS, POOL, A, replicas, workload
from topics.fleet import InstanceState

ACCOUNT = "shoal-scale"
BATCH = "/apis/batch/v1/namespaces/serving/jobs"
GROUP = "example.com"
SETS = f"/apis/{GROUP}/v1/namespaces/serving/enginesets"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1/namespaces/serving"
SELECTOR = "app%3Dengine,shoal.dev/serving%3Dtrue,team%20notin%20(bench)"
DRAINING = "shoal.dev/serving%3Ddraining"
KIND = f"{GROUP}/v1/EngineSet/enginesets"


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Any:
    name = plane.start_kubelet([f"f{n}" for n in range(3)], third=90)
    yield name
    plane.stop_process(name)


async def stranger(admin: RawApi, name: str, owner: dict[str, Any] | None) -> None:
    """A Ready pod with the labels of the engines, and with GPUs."""
    pod = workload(1)["spec"]["template"]
    pod["metadata"] |= {"name": name, "ownerReferences": [owner] if owner else []}
    pod["metadata"]["labels"]["team"] = "bench"
    await admin.post(PODS, pod)
    async with asyncio.timeout(30):
        while True:
            found = (await admin.get(f"{PODS}/{name}"))["status"].get("conditions") or ()
            if any(c["type"] == "Ready" and c["status"] == "True" for c in found):
                return
            await asyncio.sleep(0.1)


async def job(admin: RawApi) -> dict[str, Any]:
    """A reference to a Job."""
    container = {"name": "b", "image": "b"}
    spec = {"suspend": True, "template": {"spec": {"restartPolicy": "Never",
                                                   "containers": [container]}}}  # fmt: skip
    await admin.post(BATCH, {"metadata": {"name": "bench"}, "spec": spec})
    uid = (await admin.get(f"{BATCH}/bench"))["metadata"]["uid"]
    return {"apiVersion": "batch/v1", "kind": "Job", "name": "bench", "uid": uid,
            "controller": True}  # fmt: skip


async def test_scale_downs_beside_foreign_pods_break_no_stream_and_touch_none(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """A Job's pod, a copy without an owner, and a second Deployment have the engines' labels."""
    await stranger(admin, "bench-0", await job(admin))
    await stranger(admin, "copy", None)
    canary = workload(1, command=True)
    canary["metadata"] = {"name": "canary"}
    for labels in (canary["spec"]["selector"]["matchLabels"],
                   canary["spec"]["template"]["metadata"]["labels"]):  # fmt: skip
        labels["team"] = "bench"
    await admin.post(f"{APPS}/deployments", canary)
    main = workload(3)
    main["spec"]["selector"] = {
        "matchExpressions": [{"key": "app", "operator": "In", "values": ["engine", "old"]}]
    }
    await admin.post(f"{APPS}/deployments", main)
    file = config_file(tmp_path, POOL, route_lag_s=LAG_S + 0.5)
    async with Bench(file, client) as bench, LabelRouter(admin, SELECTOR) as router:
        bench.assign(A, *(wish(name, gpu) for gpu, name in enumerate("abc")))
        await bench.until(lambda: bench.ready(A, "abc") and len(router.table) == 3)
        foreign = {"bench-0", "copy", *(n for n in await names(admin) if n.startswith("canary-"))}
        assert len(foreign) == 3
        before = {name: (await admin.get(f"{PODS}/{name}"))["metadata"] for name in foreign}
        router.load(streams_per_s=10, stream_s=2.0)
        for name, left in (("a", "bc"), ("b", "c")):
            bench.drain(A, name)
            await bench.until(lambda name=name: bench.is_in(A, name, InstanceState.STOPPED))  # type: ignore[misc]
            assert await replicas(admin) == len(left)
            assert bench.ready(A, left)
        await router.finish()
        assert router.counts["ok"] > 20 and router.counts["broken"] == 0, router.counts
        for name, meta in before.items():
            found = (await admin.get(f"{PODS}/{name}"))["metadata"]
            assert (found["labels"], found.get("annotations"), found["uid"]) == (
                meta["labels"], meta.get("annotations"), meta["uid"]
            )  # fmt: skip
    await admin.delete(f"{BATCH}/bench")


async def names(admin: RawApi) -> list[str]:
    return [pod["metadata"]["name"] for pod in (await admin.get(PODS))["items"]]


async def define_sets(admin: RawApi) -> None:
    """The kind EngineSet, whose size and selector have places of their own, and rights on it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size",
             "labelSelectorPath": ".status.pods"}  # fmt: skip
    version = {"name": "v1", "served": True, "storage": True,
               "schema": {"openAPIV3Schema": schema}, "subresources": {"scale": scale}}  # fmt: skip
    words = {"plural": "enginesets", "kind": "EngineSet", "singular": "engineset"}
    spec = {"group": GROUP, "scope": "Namespaced", "names": words, "versions": [version]}
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    await admin.post(path, {"metadata": {"name": f"enginesets.{GROUP}"}, "spec": spec})
    rules = [{"apiGroups": [GROUP], "resources": ["enginesets"], "verbs": ["list", "watch"]},
             {"apiGroups": [GROUP], "resources": ["enginesets/scale"],
              "verbs": ["get", "patch"]}]  # fmt: skip
    await admin.post(f"{RIGHTS}/roles", {"metadata": {"name": "sets"}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": "shoal-scale", "namespace": "serving"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "sets"}
    binding = {"metadata": {"name": "sets"}, "roleRef": role, "subjects": [subject]}
    await admin.post(f"{RIGHTS}/rolebindings", binding)
    async with asyncio.timeout(30):
        while (await admin.call("GET", SETS))[0] != 200:
            await asyncio.sleep(0.2)


async def remove_sets(admin: RawApi) -> None:
    for path in (f"{RIGHTS}/rolebindings/sets", f"{RIGHTS}/roles/sets",
                 "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/"
                 f"enginesets.{GROUP}"):  # fmt: skip
        await admin.delete(path)


def engine_set(name: str, size: int, **spec: Any) -> dict[str, Any]:
    notes = workload(0)["metadata"]["annotations"]
    return {"apiVersion": f"{GROUP}/v1", "kind": "EngineSet",
            "metadata": {"name": name, "annotations": notes},
            "spec": {"size": size, **spec}, "status": {"pods": f"set in ({name})"}}  # fmt: skip


async def make_pods(admin: RawApi, name: str) -> None:
    """The controller of an EngineSet, which names itself in no pod."""
    while True:
        found = await admin.get(f"{SETS}/{name}")
        present = [pod for pod in await names(admin) if pod.startswith(f"{name}-")]
        for number in range(len(present), found["spec"]["size"] if found else 0):
            pod = workload(1)["spec"]["template"]
            pod["metadata"] = {"name": f"{name}-{number}", "labels": {"set": name}}
            await admin.post(PODS, pod)
        await asyncio.sleep(0.1)


async def test_a_further_kind_is_scaled_by_its_scale_and_an_unreadable_object_stops_nothing(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await define_sets(admin)
    await stranger(admin, "bench-0", await job(admin))
    labels = {"metadata": {"labels": {"set": "mine"}}}
    await admin.patch(f"{PODS}/bench-0", labels)
    await admin.post(SETS, engine_set("broken", 1, template={"spec": {"containers": "none"}}))
    await admin.post(SETS, engine_set("mine", 1))
    controller = asyncio.create_task(make_pods(admin, "mine"))
    try:
        async with Bench(config_file(tmp_path, POOL, scale_kinds=[KIND]), client) as bench:
            bench.assign(A, wish("a", 0), wish("b", 1))
            await bench.until(lambda: bench.ready(A, "ab"))
            assert (await admin.get(f"{SETS}/mine"))["spec"]["size"] == 2
            pods = (await admin.get(PODS))["items"]
            claimed = {p["metadata"]["name"] for p in pods
                       if "shoal.dev/instance" in p["metadata"]["labels"]}  # fmt: skip
            assert claimed == {"mine-0", "mine-1"}
            (fault,) = bench.statuses[A].faults
            assert fault.startswith("enginesets/broken cannot be read: ")
            await admin.delete(f"{SETS}/broken")
            await bench.until(lambda: not bench.statuses[A].faults)
        async with Bench(config_file(tmp_path, POOL, scale_kinds=[KIND]), client) as again:
            assert again.adopted == 2
    finally:
        controller.cancel()
        await remove_sets(admin)
        await admin.delete(f"{BATCH}/bench")


@pytest.mark.parametrize("early", [True, False], ids=["before", "later"])
async def test_a_workload_with_a_thousand_devices_stops_nothing(
    client: KubeClient, admin: RawApi, tmp_path: Path, early: bool
) -> None:
    """The server stores 1000 devices as "1k"."""
    poison = workload(0, command=False)
    poison["metadata"]["name"] = "poison"
    poison["metadata"]["annotations"]["shoal.dev/model"] = "other"
    for labels in (poison["spec"]["selector"]["matchLabels"],
                   poison["spec"]["template"]["metadata"]["labels"]):  # fmt: skip
        labels["app"] = "poison"
    limits = poison["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
    limits["example.com/shm"] = "1000"
    await admin.post(f"{APPS}/deployments", workload(1))
    if early:
        await admin.post(f"{APPS}/deployments", poison)
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("a", 0))
        await bench.until(lambda: bench.ready(A, "a"))
        if not early:
            stored = await admin.post(f"{APPS}/deployments", poison)
            container = stored["spec"]["template"]["spec"]["containers"][0]
            assert container["resources"]["limits"]["example.com/shm"] == "1k"
        bench.assign(A, wish("a", 0), wish("b", 1))
        await bench.until(lambda: bench.ready(A, "ab"))
        assert await replicas(admin) == 2
        assert bench.statuses[A].faults == ()


async def test_leaving_mode_scale_frees_every_pod_and_all_serve(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """The executor ends in the middle of a drain."""
    await admin.post(f"{APPS}/deployments", workload(2))
    async with Bench(config_file(tmp_path, POOL, route_lag_s=60.0), client) as bench:
        bench.assign(A, wish("a", 0), wish("b", 1))
        await bench.until(lambda: bench.ready(A, "ab"))
        bench.drain(A, "a")
        async with asyncio.timeout(30):
            while not (await admin.get(f"{PODS}?labelSelector={DRAINING}"))["items"]:
                await asyncio.sleep(0.1)
    release = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "streams.cli.entry", "kubernetes", "release",
        "--namespace", "serving", "--kubeconfig", str(plane.kubeconfig()),
    )  # fmt: skip
    assert await release.wait() == 0
    pods = (await admin.get(PODS))["items"]
    assert len(pods) == 2 and all(map(serves, pods))
    for pod in pods:
        meta = pod["metadata"]
        notes = {*meta["labels"], *meta.get("annotations", {})}
        # A router may select by these, as the pod's owner labelled it.
        assert {k for k in notes if "shoal" in k} <= {"shoal.dev/serving", "shoal.dev/role"}
        assert meta["labels"]["shoal.dev/serving"] == "true"
