"""From mode `scale` to `pods` and back, under load, with a real controller: as steps 4 and 5 of the
tutorial, and the way back. The pods of the former mode serve until their successors do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.kubernetes.label_router import LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, PODS, living, replicas, workload
from tests.kubernetes.test_single_restart import Single

INSTANCES, STREAMS = 3, 1000
SELECTOR = "shoal.dev/instance,shoal.dev/serving%3Dtrue"
FILE = """
mode: act
regions:
  us:
    l4:
      gpu: L4
      per_node: 4
      nodes: 2
      owned: true
      kubernetes: {mode: MODE, nodes: {pool: l4}}
models:
  m:
    source: Qwen/Qwen3-14B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {input: 200, output: 60}
    max_len: 4096
    disaggregate: false
    min: 3
    rollout: {watch: 2s}
"""


class Fleet(Single):
    """`shoal single` with the file above."""

    def text(self, *pools: str) -> str:
        """See `Single.text`."""
        return FILE.replace("MODE", self.mode)


async def owners(admin: RawApi) -> dict[str, bool]:
    """By name, whether Shoal made the pod, of all pods that serve an instance."""
    pods = (await admin.get(f"{PODS}?labelSelector={SELECTOR}"))["items"]
    return {
        pod["metadata"]["name"]: "shoal.dev/managed" in pod["metadata"]["labels"]
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
    }


async def test_from_scale_to_pods_and_back_breaks_no_stream_and_lowers_no_capacity(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path
) -> None:
    kubelets("mode-0", "mode-1", third=91)
    made = workload(2)
    pod = made["spec"]["template"]["spec"]["containers"][0]
    pod["resources"]["limits"]["nvidia.com/gpu"] = "2"
    made["metadata"]["annotations"]["shoal.dev/pool"] = "us/l4"
    await admin.post(f"{APPS}/deployments", made)
    fleet = Fleet(tmp_path, plane.kubeconfig("shoal-pods"), "scale")
    fewest = INSTANCES

    async def through(mode: str, done: Callable[[dict[str, bool]], bool]) -> None:
        """Restart Shoal with `mode`; ends when `done` holds for the owners of the pods."""
        nonlocal fewest
        fleet.mode = mode
        async with fleet.running():

            async def over() -> bool:
                nonlocal fewest
                fewest = min(fewest, len(router.table))
                gone = len(await living(admin)) == INSTANCES
                return gone and done(await owners(admin)) and await fleet.steady()

            await fleet.until(over, 300)

    async with LabelRouter(admin, SELECTOR) as router:
        async with fleet.running():
            await fleet.until(fleet.steady)
            assert list((await owners(admin)).values()) == [False] * INSTANCES
            while len(router.table) < INSTANCES:
                await asyncio.sleep(0.1)
            router.load(streams_per_s=10, stream_s=2.0)
            await asyncio.sleep(3)
        await through("pods", lambda found: list(found.values()) == [True] * INSTANCES)
        assert await replicas(admin) == 0
        await through("scale", lambda found: list(found.values()) == [False] * INSTANCES)
        while sum(router.counts.values()) < STREAMS:
            await asyncio.sleep(0.5)
        await router.finish()
    print("mode change", dict(router.counts), fewest)
    assert len(await living(admin)) == await replicas(admin) == INSTANCES
    assert router.counts["broken"] == router.counts["refused"] == 0
    assert router.counts["ok"] >= STREAMS
    assert fewest >= INSTANCES
