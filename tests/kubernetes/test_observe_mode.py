"""Mode `observe` on a real control plane: the controller counts pods, and nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from executors.kubernetes.cluster_report import report, serve
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from streams.files.shoal_yaml import load_config
from streams.ports.serving_pods import ServingPods, report_at
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

APPS = "/apis/apps/v1/namespaces/serving/deployments"
FILE = """
regions:
  us:
    l4: {gpu: L4, owned: true, nodes: 1, per_node: 4, kubernetes: {nodes: {pool: l4}}}
    a10: {gpu: A10G, owned: true, nodes: 1, per_node: 4, kubernetes: {nodes: {pool: a10}}}
models:
  chat:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 60ms}
    unmanaged: {pool: us/l4/owned}
serving_pods: http://127.0.0.1:1/serving
"""


def workload(pool: str, gpus: int) -> dict[str, object]:
    """A Deployment of chat on the nodes of a pool, without processes."""
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}}
    container = {"name": "engine", "image": "e", "resources": limits}
    labels = {"app": pool, "model": "chat"}
    template = {
        "metadata": {"labels": labels, "annotations": {"test/process": "none"}},
        "spec": {"containers": [container], "nodeSelector": {"pool": pool}},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": pool}}, "template": template}
    return {"metadata": {"name": pool}, "spec": spec}


async def test_the_controller_counts_the_pods_of_another_owner_and_nothing_is_written(
    plane: ControlPlane, kubelets: Callable[..., str], admin: RawApi, tmp_path: Path
) -> None:
    kubelets("o0", third=70)
    kubelets("o1", third=71, labels=("pool=a10",))
    for name, gpus in (("l4", 1), ("a10", 2)):
        await admin.post(APPS, workload(name, gpus))
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE)
    config = load_config(path)
    api = KubeClient(str(plane.kubeconfig("shoal-observe")))
    api.open()
    pools = {
        f"us/{name}/owned": KubePool(PoolMode.OBSERVE, {"pool": name}) for name in ("l4", "a10")
    }
    runner = await serve(
        lambda what: report(what, api, pools, dict.fromkeys(pools, 4)), "127.0.0.1", 0
    )
    try:
        counts: dict[str, Mapping[str, int]] = {}
        port = runner.addresses[0][1]
        url = f"http://127.0.0.1:{port}/serving"
        reader = ServingPods(report_at(url), lambda: config.cluster, counts)
        one_l4, two_a10 = "chat:a1@us/l4/owned", "chat:a2@us/a10/owned"
        for replicas, expected in (
            ((2, 1), {one_l4: 2, two_a10: 1}),
            ((3, 2), {one_l4: 3, two_a10: 2}),
            ((0, 2), {two_a10: 2}),
            ((0, 0), {one_l4: 0}),
        ):
            for name, count in zip(("l4", "a10"), replicas, strict=True):
                await admin.patch(f"{APPS}/{name}/scale", {"spec": {"replicas": count}})
            async with asyncio.timeout(60):
                while counts.get("chat") != expected:
                    await reader.read_once()
                    await asyncio.sleep(0.2)
    finally:
        await runner.cleanup()
        await api.close()
    verbs = {verb for _, _, verb in plane.allowed_requests("shoal-observe")}
    assert verbs <= {"get", "list", "watch"}
