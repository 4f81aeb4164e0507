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
from topics.fleet import InstanceState

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
        current = {n: (A if n < 4 else B, n % 4, f"i{n}") for n in range(8)}
        retired: dict[str, list[Any]] = {A: [], B: []}

        def publish() -> None:
            for slot in (A, B):
                own = [wish(name, gpu) for at, gpu, name in current.values() if at == slot]
                bench.assign(slot, *own, *retired[slot])

        publish()
        names = {slot: [n for s, _, n in current.values() if s == slot] for slot in (A, B)}
        await bench.until(lambda: bench.ready(A, names[A]) and bench.ready(B, names[B]))
        await bench.until(lambda: len(router.table) == 8)
        router.load(streams_per_s=20, stream_s=2.0)

        async def exchange(lane: int, number: int) -> None:
            slot, gpu, name = current.pop(lane)
            retired[slot].append(wish(name, gpu, drain=True))
            publish()
            await bench.until(lambda: bench.is_in(slot, name, InstanceState.STOPPED), 90)
            retired[slot] = [item for item in retired[slot] if item.instance != name]
            current[lane] = (slot, gpu, f"i{lane}-{number}")
            publish()
            await bench.until(lambda: bench.ready(slot, [f"i{lane}-{number}"]), 90)

        async def churn(lane: int) -> int:
            for number in range(10):
                await exchange(lane, number)
            return 10

        downs = sum(await asyncio.gather(*(churn(lane) for lane in range(5))))
        while sum(router.counts.values()) < 1000:
            await asyncio.sleep(0.5)
        await router.finish()
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
