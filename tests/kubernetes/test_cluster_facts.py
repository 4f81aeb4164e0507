"""Facts about Kubernetes on which mode `pods` rests."""

from __future__ import annotations

import asyncio
from typing import Any

from executors.kubernetes.pod_view import parse_pod
from tests.kubernetes.plane.raw_api import RawApi

PODS = "/api/v1/namespaces/serving/pods"
BUDGETS = "/apis/policy/v1/namespaces/serving/poddisruptionbudgets"


def pod(name: str, gpus: int = 1, **spec: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)}
    container = {"name": "e", "image": "e", "resources": {"limits": limits}}
    return {
        "metadata": {"name": name, "labels": {"of": "facts"}},
        "spec": {"containers": [container], **spec},
    }


async def conditions(admin: RawApi, name: str) -> dict[str, Any]:
    found = (await admin.get(f"{PODS}/{name}"))["status"].get("conditions") or ()
    return {one["type"]: one for one in found}


async def evict(admin: RawApi, name: str) -> int:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return (await admin.call("POST", f"{PODS}/{name}/eviction", body))[0]


async def budget(admin: RawApi, name: str, **limit: Any) -> dict[str, Any]:
    """Create a budget; returns its status once the controller has read it."""
    spec = {"selector": {"matchLabels": {"of": "facts"}}, **limit}
    await admin.post(BUDGETS, {"metadata": {"name": name}, "spec": spec})
    async with asyncio.timeout(20):
        while not (status := (await admin.get(f"{BUDGETS}/{name}")).get("status") or {}).get(
            "conditions"
        ):
            await asyncio.sleep(0.1)
    return dict(status)


async def running(admin: RawApi, *names: str) -> None:
    async with asyncio.timeout(30):
        for name in names:
            while (await conditions(admin, name)).get("Ready", {}).get("status") != "True":
                await asyncio.sleep(0.1)


async def test_a_disruption_budget_guards_pods_without_a_controller_by_a_count_alone(
    admin: RawApi, kubelets: Any
) -> None:
    kubelets("f0", third=80)
    for name in ("f1", "f2"):
        await admin.post(PODS, pod(name))
    await running(admin, "f1", "f2")
    by_share = await budget(admin, "share", maxUnavailable=1)
    assert by_share["disruptionsAllowed"] == 0
    assert await evict(admin, "f1") == 429  # guarded for good: no drain of the node ends
    await admin.delete(f"{BUDGETS}/share")
    by_count = await budget(admin, "count", minAvailable=1)
    assert by_count["disruptionsAllowed"] == 1
    assert await evict(admin, "f1") == 201
    assert await evict(admin, "f2") == 429
    await admin.delete(f"{BUDGETS}/count")


async def test_a_gated_pod_waits_without_counting_as_unschedulable(
    admin: RawApi, kubelets: Any
) -> None:
    kubelets("f0", third=80)
    await admin.post(PODS, pod("gated", schedulingGates=[{"name": "shoal.dev/test"}]))
    await asyncio.sleep(1)
    gated = await admin.get(f"{PODS}/gated")
    assert (await conditions(admin, "gated"))["PodScheduled"]["reason"] == "SchedulingGated"
    assert parse_pod(gated).unschedulable == ""


async def test_a_foreign_pod_on_the_node_leaves_a_slot_unschedulable_with_the_reason(
    admin: RawApi, kubelets: Any
) -> None:
    kubelets("f0", third=80)
    await admin.post(PODS, pod("foreign", 3))
    await running(admin, "foreign")
    await admin.post(PODS, pod("ours", 2))
    async with asyncio.timeout(10):
        while not (found := parse_pod(await admin.get(f"{PODS}/ours"))).unschedulable:
            await asyncio.sleep(0.1)
    assert "Insufficient nvidia.com/gpu" in found.unschedulable
