"""Mode `scale`: the pod that leaves is the planned one, while other clients change the pods."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

from executors.kubernetes.kube_client import KubeClient
from tests.kubernetes.executor_bench import Bench, config_file, wish
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.shared_engine import shared_engine
from topics.fleet import InstanceState

ACCOUNT = "shoal-scale"
PODS = "/api/v1/namespaces/serving/pods"
APPS = "/apis/apps/v1/namespaces/serving/deployments"
LANES, ROUNDS, REPLICAS = 10, 20, 4
POOLS = {f"us/v{n}/owned": {"mode": "scale", "nodes": {"pool": "l4"}} for n in range(LANES)}


def workload(lane: int, port: int) -> dict[str, Any]:
    """A Deployment of engines without a process. One stub answers their probes."""
    labels = {"app": f"v{lane}"}
    annotations = {"shoal.dev/managed": "true", "shoal.dev/model": "m",
                   "shoal.dev/pool": f"us/v{lane}/owned", "shoal.dev/port": str(port)}  # fmt: skip
    template = {
        "metadata": {"labels": labels, "annotations": {"test/process": "none"}},
        "spec": {"containers": [{"name": "engine", "image": "e"}]},
    }
    return {
        "metadata": {"name": f"v{lane}", "annotations": annotations},
        "spec": {"replicas": REPLICAS, "selector": {"matchLabels": labels}, "template": template},
    }


async def test_the_planned_pod_leaves_in_nearly_all_of_200_scale_downs_under_changes(
    kubelets: Any, client: KubeClient, admin: RawApi, tmp_path: Path
) -> None:
    kubelets(*(f"v{n}" for n in range(10)), third=60)
    outcomes: Counter[str] = Counter()
    numbers = itertools.count()

    async def changes() -> None:
        """20 changes of pods a second, as other controllers make them."""
        dice, sent = random.Random(7), set[asyncio.Task[Any]]()
        next_s = time.monotonic()
        while True:
            names = [p["metadata"]["name"] for p in (await admin.get(PODS))["items"]]
            for name in dice.sample(names, min(20, len(names))):
                note = {"metadata": {"annotations": {"test/change": str(next(numbers))}}}
                task = asyncio.create_task(
                    admin.call("PATCH", f"{PODS}/{name}", note, "application/merge-patch+json")
                )
                sent.add(task)
                task.add_done_callback(sent.discard)
                next_s += 0.05
                await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    began_s = time.monotonic()
    noise = asyncio.create_task(changes())
    try:
        async with (
            shared_engine() as port,
            Bench(config_file(tmp_path, POOLS, slots=1), client) as bench,
        ):
            for lane in range(LANES):
                await admin.post(APPS, workload(lane, port))
            lanes = (lane_of(bench, admin, lane, outcomes) for lane in range(LANES))
            await asyncio.gather(*lanes)
    finally:
        noise.cancel()
    per_s = next(numbers) / (time.monotonic() - began_s)
    print("victims", dict(outcomes), f"{per_s:.1f} changes per second")
    assert sum(outcomes.values()) == LANES * ROUNDS
    assert outcomes["planned"] >= LANES * ROUNDS - 2


async def lane_of(bench: Bench, admin: RawApi, lane: int, outcomes: Counter[str]) -> None:
    slot, dice = f"us.v{lane}.owned.0", random.Random(lane)
    names = [f"{lane}-{n}" for n in range(REPLICAS)]
    bench.assign(slot, *(wish(name, n) for n, name in enumerate(names)))
    await bench.until(lambda: bench.ready(slot, names), 200)
    for number in range(ROUNDS):
        at = dice.randrange(REPLICAS)
        leaves = names[at]
        chosen = await pod_of(admin, lane, leaves)
        bench.drain(slot, leaves)
        await bench.until(lambda name=leaves: bench.is_in(slot, name, InstanceState.STOPPED), 120)  # type: ignore[misc]
        left = [p["metadata"]["name"] for p in await pods(admin, lane)]
        outcomes["other" if chosen in left else "planned"] += 1
        names[at] = f"{lane}-x{number}"
        bench.assign(slot, *(wish(name, n) for n, name in enumerate(names)))
        await bench.until(lambda: bench.ready(slot, names), 120)


async def pods(admin: RawApi, lane: int) -> list[Any]:
    found = (await admin.get(f"{PODS}?labelSelector=app%3Dv{lane}"))["items"]
    return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]


async def pod_of(admin: RawApi, lane: int, instance: str) -> str:
    for pod in await pods(admin, lane):
        if pod["metadata"]["labels"].get("shoal.dev/instance") == instance:
            return str(pod["metadata"]["name"])
    return ""
