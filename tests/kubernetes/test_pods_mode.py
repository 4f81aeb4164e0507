"""Mode `pods` on a real control plane: assignments become pods, and no pod is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient, Manifest
from executors.kubernetes.kube_errors import Temporary
from executors.kubernetes.kube_kinds import Kind
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from topics.fleet import InstanceState

ACCOUNT = "shoal-pods"
PODS = "/api/v1/namespaces/serving/pods"
POOL = {"us/l4/owned": {"mode": "pods", "nodes": {"pool": "l4"}}}
A, B = "us.l4.owned.0", "us.l4.owned.1"


@pytest.fixture(scope="module")
def kubelet(plane: ControlPlane) -> Any:
    name = plane.start_kubelet(["l4-0", "l4-1"])
    yield name
    plane.stop_process(name)


async def pods_of(admin: RawApi) -> dict[str, Any]:
    """Pod by instance, of all living pods. Fails if an instance has two."""
    found: dict[str, Any] = {}
    for pod in (await admin.get(PODS))["items"]:
        instance = pod["metadata"]["labels"]["shoal.dev/instance"]
        if not pod["metadata"].get("deletionTimestamp"):
            assert instance not in found, f"two pods of {instance}"
            found[instance] = pod
    return found


async def test_an_assignment_becomes_pods_that_serve_drain_and_go(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("a", 0, 1), wish("b", 2))
        bench.assign(B, wish("c", 0))
        await bench.until(lambda: bench.ready(A, "ab") and bench.ready(B, "c"))
        seen = bench.instance(A, "a")
        pods = await pods_of(admin)
        assert seen is not None
        assert seen.endpoint == f"{pods['a']['status']['podIP']}:8000"
        assert bench.statuses[A].addresses
        # One slot, one node; two slots, two nodes.
        assert pods["a"]["spec"]["nodeName"] == pods["b"]["spec"]["nodeName"]
        assert pods["c"]["spec"]["nodeName"] != pods["a"]["spec"]["nodeName"]
        assert pods["a"]["metadata"]["labels"]["team"] == "serving"
        for _ in range(100):
            pods = await pods_of(admin)
            if pods["a"]["metadata"]["labels"]["shoal.dev/serving"] == "true":
                break
            await asyncio.sleep(0.1)
        assert pods["a"]["metadata"]["labels"]["shoal.dev/serving"] == "true"
        bench.drain(A, "a")
        await bench.until(lambda: bench.is_in(A, "a", InstanceState.STOPPED))
        assert set(await pods_of(admin)) == {"b", "c"}


async def test_a_full_cluster_is_reported_within_five_seconds(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    pools = {**POOL, "us/h100/owned": {"mode": "pods", "nodes": {"pool": "h100"}}}
    async with Bench(config_file(tmp_path, pools), client) as bench:
        slot = "us.h100.owned.0"
        bench.assign(slot, wish("x", 0))
        took_s = await bench.until(lambda: bench.is_in(slot, "x", InstanceState.FAILED), 5.0)
        seen = bench.instance(slot, "x")
        assert seen is not None and "no node: 0/2 nodes are available" in seen.reason
        assert took_s < 5.0
        bench.assign(slot)
        await bench.until(lambda: not bench.statuses[slot].instances)
    await gone(admin)


async def test_a_quota_is_reported_as_the_reason(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    quotas = "/api/v1/namespaces/serving/resourcequotas"
    spec = {"hard": {"requests.nvidia.com/gpu": "1"}}
    await admin.post(quotas, {"metadata": {"name": "gpus"}, "spec": spec})
    try:
        for _ in range(100):
            quota = await admin.get(f"{quotas}/gpus")
            if (quota.get("status") or {}).get("hard"):
                break
            await asyncio.sleep(0.1)
        async with Bench(config_file(tmp_path, POOL), client) as bench:
            bench.assign(A, wish("q", 0, 1))
            await bench.until(lambda: bench.is_in(A, "q", InstanceState.FAILED), 5.0)
            seen = bench.instance(A, "q")
            assert seen is not None and seen.reason.startswith("quota: ")
            assert "exceeded quota" in seen.reason
    finally:
        await admin.delete(f"{quotas}/gpus")


async def test_a_pod_that_an_eviction_deletes_leaves_the_routes_and_is_replaced(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("e", 0))
        await bench.until(lambda: bench.ready(A, "e"))
        name = (await pods_of(admin))["e"]["metadata"]["name"]
        await admin.delete(f"{PODS}/{name}", 5)
        await bench.until(lambda: bench.is_in(A, "e", InstanceState.STARTING))
        await bench.until(lambda: bench.ready(A, "e"))
        assert (await pods_of(admin))["e"]["metadata"]["name"] != name


async def test_a_changed_template_launches_new_pods_while_the_old_ones_serve_and_can_return(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    file = config_file(tmp_path, POOL)
    template = tmp_path / "templates" / "pod.yaml"
    async with Bench(file, client) as bench:
        bench.assign(A, wish("a", 0))
        await bench.until(lambda: bench.ready(A, "a"))
        former = bench.statuses[A].templates["default"]
        template.write_text(template.read_text().replace("team: serving", "team: other"))
        await bench.until(lambda: bench.statuses[A].templates["default"] != former)
        present = bench.statuses[A].templates["default"]
        bench.assign(A, wish("a", 0), wish("b", 1))
        await bench.until(lambda: bench.ready(A, "ab"))
    async with Bench(file, client) as bench:  # the next executor knows the former one by its pod
        back = replace(wish("c", 2), version=f"e.{former}-m")
        bench.assign(A, wish("a", 0, drain=True), wish("b", 1), back)
        await bench.until(lambda: bench.ready(A, "bc"))
        pods = await pods_of(admin)
        teams = {name: pod["metadata"]["labels"]["team"] for name, pod in pods.items()}
        assert (teams["b"], teams["c"]) == ("other", "serving")
        seen = {i.instance: i.template for i in bench.statuses[A].instances}
        assert (seen["b"], seen["c"]) == (present, former)


async def test_a_restarted_executor_adopts_its_pods(
    kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    file = config_file(tmp_path, POOL)
    async with Bench(file, client) as bench:
        bench.assign(A, wish("a", 0), wish("b", 1))
        await bench.until(lambda: bench.ready(A, "ab"))
        before = await pods_of(admin)
    async with Bench(file, client) as bench:
        assert bench.adopted == 2
        await bench.until(lambda: bench.ready(A, "ab"))
        after = await pods_of(admin)
        assert {i: p["metadata"]["uid"] for i, p in after.items()} == {
            i: p["metadata"]["uid"] for i, p in before.items()
        }


class DyingClient(KubeClient):
    """A client that dies in a create: before it, or after it and before its answer is used."""

    def __init__(self, kubeconfig: str, dice: random.Random) -> None:
        super().__init__(kubeconfig)
        self._dice = dice
        self.died = asyncio.Event()

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        if self._dice.random() < 0.8:
            await super().create(kind, manifest)
        self.died.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        return await super().patch(kind, name, change)


async def test_an_executor_killed_in_a_create_neither_doubles_nor_loses_a_pod(
    plane: ControlPlane, kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path,
) -> None:  # fmt: skip
    """100 kills between the create and its record, with four instances over four rounds."""
    file, dice = config_file(tmp_path, POOL), random.Random(1)
    kills = 0
    for number in range(25):
        names = [f"k{number}-{n}" for n in range(4)]
        wishes = [wish(name, n) for n, name in enumerate(names)]
        for _ in range(4):
            dying = DyingClient(str(plane.kubeconfig("shoal-pods")), dice)
            dying.open()
            async with Bench(file, dying) as bench:
                bench.assign(A, *wishes)
                missing = {name for name in names if name not in await pods_of(admin)}
                if missing:
                    async with asyncio.timeout(20):
                        await dying.died.wait()
                kills += 1
            await dying.close()
        async with Bench(file, client) as bench:
            bench.assign(A, *wishes)
            await bench.until(
                lambda names=names: all(bench.instance(A, n) is not None for n in names)  # type: ignore[misc]
            )
            for _ in range(200):
                if set(await pods_of(admin)) == set(names):
                    break
                await asyncio.sleep(0.05)
            assert set(await pods_of(admin)) == set(names)
            bench.assign(A)
            await bench.until(lambda: not bench.statuses[A].instances)
        await gone(admin)
    assert kills == 100


class DeafClient(KubeClient):
    """A client that loses the answer to its first create. The pod exists then."""

    lost = 0

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        stored = await super().create(kind, manifest)
        if not self.lost:
            self.lost += 1
            raise Temporary(0, "", "the answer was lost")
        return stored


async def test_a_lost_answer_to_a_create_leaves_one_pod(
    plane: ControlPlane, kubelet: str, admin: RawApi, tmp_path: Path
) -> None:
    """The repeated create finds the pod, reads it and goes on with it."""
    deaf = DeafClient(str(plane.kubeconfig("shoal-pods")))
    deaf.open()
    async with Bench(config_file(tmp_path, POOL), deaf) as bench:
        bench.assign(A, wish("a", 0))
        await bench.until(lambda: bench.ready(A, "a"))
        assert deaf.lost == 1 and set(await pods_of(admin)) == {"a"}
        bench.assign(A)
        await bench.until(lambda: not bench.statuses[A].instances)
    await deaf.close()
    await gone(admin)


async def test_while_the_api_server_is_killed_nothing_stops_and_nothing_is_doubled(
    plane: ControlPlane, kubelet: str, client: KubeClient, admin: RawApi, tmp_path: Path,
) -> None:  # fmt: skip
    async with Bench(config_file(tmp_path, POOL), client) as bench:
        bench.assign(A, wish("s", 0))
        await bench.until(lambda: bench.ready(A, "s"))
        for number in range(10):
            name, old = f"n{number}", f"n{number - 1}"
            plane.kill_api_server()
            keeps = [wish(old, 1, drain=True)] if number else []
            bench.assign(A, wish("s", 0), wish(name, 2 + number % 2), *keeps)
            await asyncio.sleep(0.5)
            assert bench.ready(A, "s")  # Probes do not need the API server.
            await asyncio.to_thread(plane.start_api_server)
            plane.restart_controllers()
            await bench.until(lambda name=name: bench.ready(A, [name]))  # type: ignore[misc]
            assert {"s", name} <= set(await pods_of(admin))
        assert bench.ready(A, "s")


async def gone(admin: RawApi) -> None:
    for _ in range(300):
        if not (await admin.get(PODS))["items"]:
            return
        await asyncio.sleep(0.1)
    raise AssertionError("pods are left")
