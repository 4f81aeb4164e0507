"""Mode `pods`: streams over scale-downs, and the cost of an executor of 500 pods."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.replacement_load import replace_all_under_load

PODS = "/api/v1/namespaces/serving/pods"
POOL = {"us/l4/owned": {"mode": "pods", "nodes": {"pool": "l4"}}}
A, B = "us.l4.owned.0", "us.l4.owned.1"
SELECTOR = "shoal.dev/model%3Dm,shoal.dev/serving%3Dtrue"


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[KubeClient]:
    made = KubeClient(str(plane.kubeconfig("shoal-pods")))
    made.open()
    yield made
    await made.close()


async def test_scale_downs_break_no_stream_while_deleted_pods_do(
    plane: ControlPlane, kubelets: Any, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    kubelets("p0", "p1", third=40)
    file = config_file(tmp_path, POOL, route_lag_s=LAG_S + 0.5)
    async with Bench(file, client) as bench, LabelRouter(admin, SELECTOR) as router:
        downs = await replace_all_under_load(bench, router, (A, B))
        print("pods", downs, dict(router.counts))
        assert downs == 50
        assert router.counts["broken"] == 0
        assert router.counts["ok"] >= 1000
    async with LabelRouter(admin, SELECTOR) as plain:
        while len(plain.table) < 8:
            await asyncio.sleep(0.1)
        plain.load(streams_per_s=20, stream_s=2.0)
        await asyncio.sleep(3)
        for pod in (await admin.get(PODS))["items"][:4]:
            await admin.delete(f"{PODS}/{pod['metadata']['name']}", 5)
        await asyncio.sleep(3)
        await plain.finish()
        print("plain", dict(plain.counts))
        assert plain.counts["broken"] > 0


_IDLE = """
import asyncio, json, resource, sys
from pathlib import Path
from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench

class Counting(KubeClient):
    sent = 0
    async def _attempt(self, send):
        Counting.sent += 1
        return await super()._attempt(send)

async def main():
    client = Counting(sys.argv[1])
    client.open()
    async with Bench(json.loads(Path(sys.argv[2]).read_text()), client) as bench:
        print(json.dumps({"adopted": bench.adopted}), flush=True)
        await asyncio.sleep(5)
        before = Counting.sent
        await asyncio.sleep(20)
        used = resource.getrusage(resource.RUSAGE_SELF)
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
        print(json.dumps({"requests_per_s": (Counting.sent - before) / 20, "rss_mib": rss,
                          "cpu_s": used.ru_utime + used.ru_stime}), flush=True)

asyncio.run(main())
"""


async def test_an_idle_executor_of_500_pods_is_small_and_asks_little(
    plane: ControlPlane, kubelets: Any, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    kubelets(*(f"m{n}" for n in range(125)), third=41)
    file = config_file(tmp_path, POOL, slots=125)
    # Pods without a process: the kubelet only reports them as running.
    template = tmp_path / "templates" / "pod.yaml"
    text = "metadata: {annotations: {test/process: none}}\n"
    template.write_text(text + "spec: {containers: [{name: engine, image: e}]}\n")
    async with Bench(file, client) as bench:
        for slot in bench.slots.workers:
            bench.assign(slot, *(wish(f"{slot}-{gpu}", gpu) for gpu in range(4)))
        await bench.until(lambda: len(bench.slots.fleet.pods.objects) == 500, 110)
    path = tmp_path / "file.json"
    path.write_text(json.dumps(file))
    began_s = time.monotonic()
    found = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _IDLE, str(plane.kubeconfig("shoal-pods")), str(path)],
        capture_output=True, text=True, timeout=110,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert found.returncode == 0, found.stderr[-2000:]
    adopted, idle = (json.loads(line) for line in found.stdout.splitlines()[:2])
    print("idle", adopted, idle, f"{time.monotonic() - began_s:.0f} s")
    assert adopted["adopted"] == 500
    assert idle["rss_mib"] < 150
    assert idle["requests_per_s"] <= 5
