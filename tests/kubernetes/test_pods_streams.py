"""Mode `pods`: streams over scale-downs, and the cost of an executor of 500 pods on 200 nodes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

from executors.engines.engine_protocol import LaunchLine
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kube_names import SERVING
from executors.kubernetes.pod_template import PodLaunch, PodSettings, build_pod
from tests.kubernetes.executor_bench import TEMPLATE, Bench, config_file, wish
from tests.kubernetes.hostile_cluster import (
    GATE,
    add_foreign,
    failing_webhook,
    foreign,
    open_gates,
)
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.replacement_load import replace_all_under_load
from tests.kubernetes.shared_engine import shared_engine

PODS = "/api/v1/namespaces/serving/pods"
POOL = {"us/l4/owned": {"mode": "pods", "nodes": {"pool": "l4"}}}
A, B = "us.l4.owned.0", "us.l4.owned.1"
SELECTOR = "shoal.dev/model%3Dm,shoal.dev/serving%3Dtrue"


async def test_scale_downs_break_no_stream_while_deleted_pods_do(
    plane: ControlPlane, kubelets: Any, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    """Other owners have pods, a webhook that fails half of the time, and a queue in the cluster."""
    kubelets("p0", "p1", third=40)
    file = config_file(tmp_path, POOL, route_lag_s=LAG_S + 0.5)
    gated = TEMPLATE.replace("spec:\n", f"spec:\n  schedulingGates: [{json.dumps(GATE)}]\n")
    (tmp_path / "templates" / "pod.yaml").write_text(gated)
    await add_foreign(admin)
    theirs = await foreign(admin)
    async with (
        failing_webhook(plane, admin) as answers,
        open_gates(admin),
        Bench(file, client) as bench,
        LabelRouter(admin, SELECTOR) as router,
    ):
        downs = await replace_all_under_load(bench, router, (A, B))
        print("pods", downs, dict(router.counts), dict(answers))
        assert downs == 50
        assert router.counts["broken"] == 0
        assert router.counts["ok"] >= 1000
        assert answers["failed"] >= 50
    assert await foreign(admin) == theirs
    async with LabelRouter(admin, SELECTOR) as plain:
        while len(plain.table) < 8:
            await asyncio.sleep(0.1)
        plain.load(streams_per_s=20, stream_s=2.0)
        await asyncio.sleep(3)
        for pod in (await admin.get(f"{PODS}?labelSelector={SELECTOR}"))["items"][:4]:
            await admin.delete(f"{PODS}/{pod['metadata']['name']}", 5)
        await asyncio.sleep(3)
        await plain.finish()
        print("plain", dict(plain.counts))
        assert plain.counts["broken"] > 0


_EXECUTOR = """
import asyncio, json, resource, sys
from pathlib import Path
from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench
from topics.fleet import InstanceState

ACCOUNT = "shoal-pods"

async def main():
    client = KubeClient(sys.argv[1])
    client.open()
    async with Bench(json.loads(Path(sys.argv[2]).read_text()), client) as bench:
        def ready():
            seen = (one for status in bench.statuses.values() for one in status.instances)
            return sum(one.state is InstanceState.READY for one in seen) == 500
        await bench.until(ready, 200)
        print(json.dumps({"adopted": bench.adopted}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        used = resource.getrusage(resource.RUSAGE_SELF)
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
        print(json.dumps({"ready": ready(), "rss_mib": rss,
                          "cpu_s": used.ru_utime + used.ru_stime}), flush=True)

asyncio.run(main())
"""
_IDLE_S = 20.0
_NODES = 200


async def test_an_idle_executor_of_500_pods_is_small_and_asks_little(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path
) -> None:
    """The API server counts the requests, after all 500 adopted engines have answered. 100 slots
    have four pods, and 100 have one. The kubelet reports all 200 nodes every 10 s.
    """
    kubelets(*(f"m{n}" for n in range(_NODES)), third=41)
    file = config_file(tmp_path, POOL, slots=_NODES)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file))
    async with shared_engine() as port:
        made = [bound_pod(n, gpu, port) for n in range(_NODES) for gpu in range((4, 1)[n % 2])]
        for part in range(0, len(made), 20):
            await asyncio.gather(*(admin.post(PODS, pod) for pod in made[part : part + 20]))
        executor = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _EXECUTOR, str(plane.kubeconfig("shoal-pods")), str(path),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )  # fmt: skip
        assert executor.stdin is not None and executor.stdout is not None
        adopted = json.loads(await executor.stdout.readline())
        before = plane.count_requests("shoal-pods")
        await asyncio.sleep(_IDLE_S)
        requests = plane.count_requests("shoal-pods") - before
        executor.stdin.write(b"\n")
        idle = json.loads(await executor.stdout.readline())
        assert await executor.wait() == 0
    print("idle", adopted, idle, dict(requests))
    assert adopted["adopted"] == 500
    assert idle["ready"]
    assert idle["rss_mib"] < 150
    assert requests.total() <= 5 * _IDLE_S, requests
    living = (await admin.get(PODS))["items"]
    assert [pod["metadata"]["labels"][SERVING] for pod in living] == ["true"] * 500


def bound_pod(node: int, gpu: int, port: int) -> Any:
    """A pod as an executor made it, already on its node, and without a process: the kubelet only
    reports it as running."""
    slot = f"us.l4.owned.{node}"
    launch = PodLaunch(wish(f"{slot}-{gpu}", gpu), 0, (port,), 1)
    template = yaml.safe_load(TEMPLATE)
    del template["spec"]["containers"][0]["readinessProbe"]
    template["metadata"]["annotations"] = {"test/process": "none"}
    settings = PodSettings("us/l4/owned", {"pool": "l4"})
    pod = build_pod(template, settings, slot, launch, LaunchLine(("none",)), "", 5)
    pod["metadata"]["labels"][SERVING] = "true"
    pod["spec"]["nodeName"] = f"m{node}"
    return pod
