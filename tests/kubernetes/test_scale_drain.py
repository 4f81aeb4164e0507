"""Mode `scale`: nodes that are drained under load, with `kubectl` and the real controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.kubernetes import surplus_pods
from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.drains import disruption_budget, drain, kubectl, pods_on
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import (
    APPS,
    POOL,
    SELECTOR,
    A,
    B,
    living,
    pods_by_instance,
    replicas,
    workload,
)

ACCOUNT = "shoal-scale"
NODES, GPUS, NEEDED, STREAMS = ("d0", "d1", "d2"), 2, 4, 1000


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Iterator[None]:
    name = plane.start_kubelet(list(NODES), gpus=GPUS, third=89)
    yield
    plane.stop_process(name)


async def clear(plane: ControlPlane, admin: RawApi, node: str, taint: str) -> int:
    """Empty a node by `kubectl drain`, or by a taint. Returns the number of pods that it had."""
    if not taint:
        return await drain(plane, admin, node)
    before = len(await pods_on(admin, node))
    await kubectl(plane, "taint", "node", node, f"{taint}=yes:NoSchedule")
    async with asyncio.timeout(40):  # less than half of a notice of 90 s
        while await pods_on(admin, node):
            await asyncio.sleep(0.2)
    await kubectl(plane, "taint", "node", node, f"{taint}-")
    return before


@pytest.mark.parametrize(
    ("kind", "taint"),
    [
        ("Deployment", ""), ("StatefulSet", ""), ("Deployment", "karpenter.sh/disrupted"),
        ("Deployment", "aws-node-termination-handler/spot-itn"),
    ],
    ids=["drain", "ordinals", "drift", "spot"],
)  # fmt: skip
async def test_the_pods_of_each_node_in_turn_are_replaced_before_they_leave(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, kind: str, taint: str,
) -> None:  # fmt: skip
    """Slots of this mode are no nodes: each slot has pods on several nodes. One of three nodes is
    spare."""
    monkeypatch.setattr(surplus_pods, "_SETTLED_S", 5.0)
    kinds = f"{kind.lower()}s"
    await admin.post(f"{APPS}/{kinds}", workload(NEEDED, kind))
    file = config_file(tmp_path, POOL, slots=2, route_lag_s=LAG_S + 0.5)
    async with (
        disruption_budget(admin),
        Bench(file, client) as bench,
        LabelRouter(admin, SELECTOR) as router,
    ):
        slots = {A: "ab", B: "cd"}
        for slot, names in slots.items():
            bench.assign(slot, *(wish(name, gpu) for gpu, name in enumerate(names)))
        await bench.until(lambda: all(bench.ready(slot, names) for slot, names in slots.items()))
        await bench.until(lambda: len(router.table) == NEEDED)
        router.load(streams_per_s=20, stream_s=2.0)
        emptied = sum([await clear(plane, admin, node, taint) for node in NODES])
        while sum(router.counts.values()) < STREAMS:
            await asyncio.sleep(0.2)
        fewest = router.fewest
        await router.finish()
        print("scale drains", kind, taint, dict(router.counts), fewest, emptied)
        assert emptied >= NEEDED
        assert fewest >= NEEDED
        assert router.counts["broken"] == router.counts["refused"] == 0
        assert all(bench.ready(slot, names) for slot, names in slots.items())
        assert all(i.restarts == 0 for s in bench.statuses.values() for i in s.instances)
        assert all(not status.reclaim_ms for status in bench.statuses.values())
        async with asyncio.timeout(120):
            while await replicas(admin, kinds) != NEEDED or len(await living(admin)) != NEEDED:
                await asyncio.sleep(0.2)
        assert sorted((await pods_by_instance(admin)).values()) == await living(admin)
