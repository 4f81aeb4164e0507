"""Mode `scale` among pods, queues and webhooks of other owners, on a real control plane."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench, config_file
from tests.kubernetes.hostile_cluster import GATE, failing_webhook, open_gates
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.replacement_load import replace_all_under_load
from tests.kubernetes.test_foreign_owners import BATCH, SELECTOR, job, stranger
from tests.kubernetes.test_scale_mode import APPS, PODS, POOL, A, B, workload

ACCOUNT = "shoal-scale"
ENGINES = {"app": "engine"}


@pytest.fixture(scope="module", autouse=True)
def kubelet(plane: ControlPlane) -> Any:
    name = plane.start_kubelet([f"h{n}" for n in range(3)], third=98)
    yield name
    plane.stop_process(name)


async def theirs(admin: RawApi) -> dict[str, Any]:
    """Fields of the foreign pods that their owners wrote, by uid."""
    pods = (await admin.get(f"{PODS}?labelSelector=team%3Dbench"))["items"]
    kept = ("name", "labels", "annotations", "ownerReferences", "deletionTimestamp")
    return {
        one["metadata"]["uid"]: ({k: one["metadata"].get(k) for k in kept}, one["spec"])
        for one in pods
    }


async def test_fifty_scale_downs_break_no_stream_and_touch_no_pod_of_others(
    plane: ControlPlane, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """A Job's pod and a copy have the engines' labels, a webhook fails half of the writes of all
    these pods, and a queue admits the new ones."""
    await stranger(admin, "bench-0", await job(admin))
    await stranger(admin, "copy", None)
    before = await theirs(admin)
    assert len(before) == 2
    made = workload(8)
    made["spec"]["template"]["spec"]["schedulingGates"] = [GATE]
    file = config_file(tmp_path, POOL, slots=2, route_lag_s=LAG_S + 0.5)
    try:
        async with (
            failing_webhook(plane, admin, ENGINES) as answers,
            open_gates(admin, ENGINES),
            Bench(file, client) as bench,
            LabelRouter(admin, SELECTOR) as router,
        ):
            await admin.post(f"{APPS}/deployments", made)
            downs = await replace_all_under_load(bench, router, (A, B), may_fail=True)
            print("hostile scale", downs, dict(router.counts), dict(answers))
            assert downs == 50
            assert router.counts["broken"] == 0
            assert router.counts["ok"] >= 1000
            assert answers["failed"] >= 50
        assert await theirs(admin) == before
    finally:
        await admin.delete(f"{BATCH}/bench")
