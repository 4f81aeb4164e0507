"""Mode `observe` on a real control plane: the controller counts pods, and nothing is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from executors.kubernetes.cluster_report import serve
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from streams.files.shoal_yaml import load_config
from streams.ports.serving_pods import ServingPods, report_at
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

APPS = "/apis/apps/v1/namespaces/serving/deployments"
FILE = """
regions:
  us: {l4: {gpu: L4, owned: true, nodes: 1, per_node: 4, kubernetes: {nodes: {pool: l4}}}}
models:
  chat:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 60ms}
    unmanaged: {pool: us/l4/owned}
serving_pods: http://127.0.0.1:1/serving
"""


async def test_the_controller_counts_the_pods_of_another_owner_and_nothing_is_written(
    plane: ControlPlane, kubelets: Callable[..., str], admin: RawApi, tmp_path: Path
) -> None:
    kubelets("o0", third=70)
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    template = {
        "metadata": {"labels": {"app": "e", "model": "chat"},
                     "annotations": {"test/process": "none"}},
        "spec": {"containers": [{"name": "engine", "image": "e", "resources": limits}]},
    }  # fmt: skip
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "e"}}, "template": template}
    await admin.post(APPS, {"metadata": {"name": "theirs"}, "spec": spec})
    path = tmp_path / "shoal.yaml"
    path.write_text(FILE)
    config = load_config(path)
    api = KubeClient(str(plane.kubeconfig("shoal-observe")))
    api.open()
    pools = {"us/l4/owned": KubePool(PoolMode.OBSERVE, {"pool": "l4"})}
    runner = await serve(api, pools, {"us/l4/owned": 4}, "127.0.0.1", 0)
    try:
        counts: dict[str, int] = {}
        port = runner.addresses[0][1]
        url = f"http://127.0.0.1:{port}/serving"
        reader = ServingPods(report_at(url), lambda: config.cluster.services, counts)
        for replicas in (2, 3, 0):
            await admin.patch(f"{APPS}/theirs/scale", {"spec": {"replicas": replicas}})
            async with asyncio.timeout(60):
                while counts.get("chat") != replicas:
                    await reader.read_once()
                    await asyncio.sleep(0.2)
    finally:
        await runner.cleanup()
        await api.close()
    verbs = {verb for _, _, verb in plane.allowed_requests("shoal-observe")}
    assert verbs <= {"get", "list", "watch"}
