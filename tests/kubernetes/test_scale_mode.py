"""Mode `scale` on a real control plane: drains, chosen victims, and other managers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import STUB, Bench, config_file, wish
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.replacement_load import replace_all_under_load
from topics.fleet import InstanceState

ACCOUNT = "shoal-scale"
PODS = "/api/v1/namespaces/serving/pods"
APPS = "/apis/apps/v1/namespaces/serving"
POOL = {"us/l4/owned": {"mode": "scale", "nodes": {"pool": "l4"}}}
A, B = "us.l4.owned.0", "us.l4.owned.1"
SELECTOR = "app%3Dengine,shoal.dev/serving%3Dtrue"


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Any:
    name = plane.start_kubelet([f"s{n}" for n in range(4)], third=20)
    yield name
    plane.stop_process(name)


def workload(replicas: int, kind: str = "Deployment", command: bool = True, **notes: str) -> Any:
    container: dict[str, Any] = {
        "name": "engine", "image": "engine",
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }  # fmt: skip
    if command:
        container |= {
            "command": [sys.executable, "-S", "-E", str(STUB)],
            "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1},
        }
    spec = {"terminationGracePeriodSeconds": 5, "containers": [container]}
    labels = {"app": "engine"}
    template = {"metadata": {"labels": {**labels, "shoal.dev/serving": "true"}}, "spec": spec}
    annotations = {
        "shoal.dev/managed": "true", "shoal.dev/model": "m", "shoal.dev/pool": "us/l4/owned",
        **{f"shoal.dev/{key}": value for key, value in notes.items()},
    }  # fmt: skip
    found: dict[str, Any] = {
        "metadata": {"name": "engine", "annotations": annotations},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }
    if kind == "StatefulSet":
        found["spec"] |= {"serviceName": "engine", "podManagementPolicy": "Parallel"}
    return found


async def living(admin: RawApi) -> list[str]:
    pods = (await admin.get(PODS))["items"]
    return sorted(p["metadata"]["name"] for p in pods if not p["metadata"].get("deletionTimestamp"))


async def replicas(admin: RawApi, kind: str = "deployments") -> int:
    return int((await admin.get(f"{APPS}/{kind}/engine"))["spec"]["replicas"])


async def pods_by_instance(admin: RawApi) -> dict[str, str]:
    pods = (await admin.get(PODS))["items"]
    return {
        p["metadata"]["labels"]["shoal.dev/instance"]: p["metadata"]["name"]
        for p in pods
        if "shoal.dev/instance" in p["metadata"]["labels"]
    }


async def test_claims_take_running_pods_first_and_then_scale_out(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/deployments", workload(2))
    while len(await living(admin)) < 2:
        await asyncio.sleep(0.1)
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("a", 0), wish("b", 1))
        await bench.until(lambda: bench.ready(A, "ab"))
        assert await replicas(admin) == 2
        bench.assign(A, wish("a", 0), wish("b", 1), wish("c", 2))
        await bench.until(lambda: bench.ready(A, "abc"))
        assert await replicas(admin) == 3
        chosen = (await pods_by_instance(admin))["a"]
        bench.drain(A, "a")
        await bench.until(lambda: bench.is_in(A, "a", InstanceState.STOPPED))
        assert await replicas(admin) == 2
        assert chosen not in await living(admin)
    async with Bench(config_file(tmp_path, POOL), client) as again:
        assert again.adopted == 2


async def test_scale_downs_break_no_stream_while_the_plain_way_does(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/deployments", workload(8))
    file = config_file(tmp_path, POOL, slots=2, route_lag_s=LAG_S + 0.5)
    async with Bench(file, client) as bench, LabelRouter(admin, SELECTOR) as router:
        downs = await replace_all_under_load(bench, router, (A, B))
        print("scale", downs, dict(router.counts))
        assert downs == 50
        assert router.counts["broken"] == 0
        assert router.counts["ok"] >= 1000
    await plain_scale_downs(admin)


@pytest.mark.parametrize(
    ("surge", "missing"), [(1, 0), (0, 1), ("25%", "25%")], ids=["surge", "missing", "default"]
)
async def test_a_rollout_of_the_workload_itself_breaks_no_stream_and_keeps_every_instance(
    client: KubeClient, admin: RawApi, tmp_path: Path, surge: str | int, missing: str | int
) -> None:
    """Kubernetes replaces the pods; each instance goes over to one of the new pods. If pods may be
    missing, Kubernetes removes one at once; from then on, Shoal has as many more."""
    made = workload(4)
    pod = made["spec"]["template"]["spec"]
    pod["terminationGracePeriodSeconds"] = 30
    pod["containers"][0]["env"] = [
        {"name": "STUB_SHUTDOWN_S", "value": "10"}, {"name": "STUB_START_S", "value": "3"},
    ]  # fmt: skip
    pod["containers"][0]["lifecycle"] = {"preStop": {"sleep": {"seconds": 4}}}
    bounds = {"maxSurge": surge, "maxUnavailable": missing}
    made["spec"]["strategy"] = {"type": "RollingUpdate", "rollingUpdate": bounds}
    await admin.post(f"{APPS}/deployments", made)
    async with (
        Bench(config_file(tmp_path, POOL), client) as bench,
        LabelRouter(admin, SELECTOR) as router,
    ):
        bench.assign(A, *(wish(name, gpu) for gpu, name in enumerate("abcd")))
        await bench.until(lambda: bench.ready(A, "abcd") and len(router.table) == 4)
        former = set(await living(admin))
        router.load(streams_per_s=20, stream_s=2.0)
        template = {"metadata": {"annotations": {"version": "2"}}}
        await admin.patch(f"{APPS}/deployments/engine", {"spec": {"template": template}})
        fewest_ready, spare = 4, 0
        while former & set(await living(admin)):
            ready = sum(bench.ready(A, name) for name in "abcd")
            fewest_ready, spare = min(fewest_ready, ready), max(spare, await replicas(admin) - 4)
            await asyncio.sleep(0.1)
        await bench.until(lambda: bench.ready(A, "abcd") and len(router.table) >= 4)
        fewest = router.fewest
        while sum(router.counts.values()) < 1000:
            await asyncio.sleep(0.2)
        await router.finish()
        print("own rollout", dict(router.counts), fewest, fewest_ready, spare)
        async with asyncio.timeout(20):  # the last instance moves when its new pod is ready
            while not set((await pods_by_instance(admin)).values()) <= set(await living(admin)):
                await asyncio.sleep(0.1)
        assert router.counts["broken"] == router.counts["refused"] == 0
        lost = int(missing != 0)
        assert fewest >= 4 - lost
        assert fewest_ready >= 4 - lost
        assert spare == lost


async def test_a_green_deployment_takes_over_from_a_blue_one(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """Its owner opts it in, and the blue one out. No stream breaks, and no instance waits."""
    green = workload(4)
    green["metadata"] = {"name": "green"}
    green["spec"]["selector"]["matchLabels"]["colour"] = "green"
    green["spec"]["template"]["metadata"]["labels"]["colour"] = "green"
    notes = workload(4)["metadata"]["annotations"]
    blue = workload(4)
    blue["spec"]["selector"]["matchLabels"]["colour"] = "blue"
    blue["spec"]["template"]["metadata"]["labels"]["colour"] = "blue"
    for one in (blue, green):
        await admin.post(f"{APPS}/deployments", one)
    async with (
        Bench(config_file(tmp_path, POOL), client) as bench,
        LabelRouter(admin, "shoal.dev/instance") as router,
    ):
        bench.assign(A, *(wish(name, gpu) for gpu, name in enumerate("abcd")))
        await bench.until(lambda: bench.ready(A, "abcd") and len(router.table) == 4)
        before = set((await pods_by_instance(admin)).values())
        router.load(streams_per_s=20, stream_s=2.0)
        for name, values in (("green", notes), ("engine", {"shoal.dev/managed": None})):
            change = {"metadata": {"annotations": values}}
            await admin.patch(f"{APPS}/deployments/{name}", change)
        while before & set((await pods_by_instance(admin)).values()):
            assert bench.ready(A, "abcd")
            assert router.table
            await asyncio.sleep(0.1)
        await asyncio.sleep(LAG_S + 3.0)  # the streams at blue pods end
        await admin.delete(f"{APPS}/deployments/engine")
        while before & set(await living(admin)):
            assert bench.ready(A, "abcd")
            await asyncio.sleep(0.1)
        await router.finish()
        print("blue-green", dict(router.counts))
        assert router.counts["broken"] == router.counts["refused"] == 0
        assert router.counts["ok"] >= 80
    await admin.delete(f"{APPS}/deployments/green")


async def plain_scale_downs(admin: RawApi) -> None:
    """The same load, while replicas are lowered without a drain."""
    async with LabelRouter(admin, SELECTOR) as router:
        while len(router.table) < 8:
            await asyncio.sleep(0.1)
        router.load(streams_per_s=20, stream_s=2.0)
        await asyncio.sleep(3)
        for count in (6, 4):
            await admin.patch(f"{APPS}/deployments/engine/scale", {"spec": {"replicas": count}})
            await asyncio.sleep(3)
        await router.finish()
        print("plain", dict(router.counts))
        assert router.counts["broken"] > 0


async def test_while_the_api_server_is_killed_a_workload_keeps_its_claims(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """The server dies ten times during a scale-out or a scale-down.

    A controller that restarts may not know the chosen pod yet and remove another one. The chosen
    pod then stays without a claim, and leaves once the claims have been ready for a while.
    """
    await admin.post(f"{APPS}/deployments", workload(2))
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("s", 0), wish("n-1", 1))
        await bench.until(lambda: bench.ready(A, ["s", "n-1"]))
        for number in range(10):
            name, old = f"n{number}", f"n{number - 1}"
            bench.assign(A, wish("s", 0), wish(old, 1 + number % 2, drain=True),
                         wish(name, 2 - number % 2))  # fmt: skip
            await asyncio.sleep(0.2 * (number % 5))
            plane.kill_api_server()
            await asyncio.sleep(0.3)
            assert bench.ready(A, "s")
            await asyncio.to_thread(plane.start_api_server)
            plane.restart_controllers()
            await bench.until(lambda name=name: bench.ready(A, [name]), 100)  # type: ignore[misc]
            await bench.until(
                lambda old=old: bench.is_in(A, old, InstanceState.STOPPED),
                100,  # type: ignore[misc]
            )
            bench.assign(A, wish("s", 0), wish(name, 2 - number % 2))
            claimed = await pods_by_instance(admin)
            assert {"s", name} <= set(claimed)
        async with asyncio.timeout(400):
            while await replicas(admin) != 2 or len(await living(admin)) != 2:
                await asyncio.sleep(1)
        assert set(await pods_by_instance(admin)) == {"s", name}


async def test_an_autoscaler_on_the_workload_is_named_and_nothing_is_written(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    hpas = "/apis/autoscaling/v2/namespaces/serving/horizontalpodautoscalers"
    ref = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "engine"}
    spec = {"scaleTargetRef": ref, "minReplicas": 1, "maxReplicas": 3}
    await admin.post(f"{APPS}/deployments", workload(1))
    await admin.post(hpas, {"metadata": {"name": "theirs"}, "spec": spec})
    try:
        async with Bench(config_file(tmp_path, POOL), client) as bench:
            bench.assign(A, wish("a", 0), wish("b", 1))
            await bench.until(lambda: bench.is_in(A, "b", InstanceState.FAILED))
            seen = bench.instance(A, "b")
            assert seen is not None
            assert "HorizontalPodAutoscaler theirs scales deployments/engine" in seen.reason
            await bench.until(lambda: bench.ready(A, "a"))
            assert await replicas(admin) == 1
            events = (await admin.get("/api/v1/namespaces/serving/events"))["items"]
            assert [e["message"] for e in events if e["reason"] == "NotScaled"] == [seen.reason]
    finally:
        await admin.delete(f"{hpas}/theirs")


async def test_a_manager_that_sets_the_replicas_back_sees_one_write_and_is_named(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/deployments", workload(1))

    async def git_ops() -> None:
        path = f"{APPS}/deployments/engine?fieldManager=gitops"
        while True:
            if await replicas(admin) != 1:
                await admin.patch(path, {"spec": {"replicas": 1}})
            await asyncio.sleep(0.2)

    other = asyncio.create_task(git_ops())
    try:
        async with Bench(config_file(tmp_path, POOL), client) as bench:
            bench.assign(A, wish("a", 0))
            await bench.until(lambda: bench.ready(A, "a"))
            bench.assign(A, wish("a", 0), wish("b", 1), wish("c", 2))
            refused = [InstanceState.FAILED]
            await bench.until(lambda: any(bench.is_in(A, n, s) for n in "bc" for s in refused))
            reasons = [i.reason for i in bench.statuses[A].instances if i.reason]
            assert any("gitops set deployments/engine to 1 replicas" in why for why in reasons)
            before = (await admin.get(f"{APPS}/deployments/engine"))["metadata"]["generation"]
            await asyncio.sleep(3)
            after = (await admin.get(f"{APPS}/deployments/engine"))["metadata"]["generation"]
            assert after == before  # nothing is written after the refusal
            assert after <= 3  # created, one write by Shoal, set back by the other
    finally:
        other.cancel()


async def test_a_stateful_set_loses_its_highest_ordinal_and_the_plan_follows(
    client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    await admin.post(f"{APPS}/statefulsets", workload(3, "StatefulSet"))
    while len(await living(admin)) < 3:
        await asyncio.sleep(0.1)
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("a", 0), wish("b", 1), wish("c", 2))
        await bench.until(lambda: bench.ready(A, "abc"))
        first = next(n for n, pod in (await pods_by_instance(admin)).items() if pod == "engine-0")
        bench.drain(A, first)
        await bench.until(lambda: bench.is_in(A, first, InstanceState.STOPPED))
        assert await living(admin) == ["engine-0", "engine-1"]
        others = [n for n in "abc" if n != first]
        await bench.until(lambda: bench.ready(A, others))
        assert await replicas(admin, "statefulsets") == 2
