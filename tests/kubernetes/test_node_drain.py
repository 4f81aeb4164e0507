"""`kubectl drain` of each node in turn, under load, with a real controller and executor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm_tools import tools
from tests.kubernetes.conftest import Start
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.real_control import RealControl

PODS = "/api/v1/namespaces/serving/pods"
BUDGETS = "/apis/policy/v1/namespaces/serving/poddisruptionbudgets"
BUDGET = Path(__file__).parents[2] / "deploy" / "kubernetes" / "disruption-budget.yaml"
SELECTOR = "shoal.dev/model%3Dm,shoal.dev/serving%3Dtrue"
NODES, GPUS, NEEDED, STREAMS = ("e0", "e1", "e2"), 2, 4, 1000
FILE = f"""
mode: act
regions:
  us:
    l4:
      gpu: L4
      per_node: {GPUS}
      nodes: {len(NODES)}
      owned: true
      kubernetes: {{mode: pods, nodes: {{pool: drained}}}}
models:
  m:
    source: Qwen/Qwen3-8B
    slo: {{ttft: 2s, tpot: 100ms}}
    workload: {{input: 200, output: 60}}
    max_len: 4096
    disaggregate: false
    min: {NEEDED}
    max_disruption: 50%
"""


@pytest.fixture
async def budget(admin: RawApi) -> AsyncIterator[None]:
    """Shoal's disruption budget, once its controller knows it."""
    manifest = yaml.safe_load(BUDGET.read_text())
    path = f"{BUDGETS}/{manifest['metadata']['name']}"
    await admin.post(BUDGETS, manifest)
    async with asyncio.timeout(30):
        while "conditions" not in (await admin.get(path)).get("status", {}):
            await asyncio.sleep(0.1)
    yield
    await admin.delete(path)


async def test_a_drain_of_each_node_in_turn_breaks_no_stream_and_keeps_the_capacity(
    plane: ControlPlane, kubelets: Any, admin: RawApi, budget: None, tmp_path: Path, start: Start
) -> None:
    """One of three nodes is spare, and both engines of a node may leave together. `kubectl drain`
    without --force ends when the node is empty.
    """
    kubelets(*NODES, gpus=GPUS, labels=("pool=drained",), third=88)
    control = RealControl.of(start, tmp_path, FILE)
    control.run(plane, "--route-lag", str(LAG_S + 0.5))

    async def kubectl(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            str(tools() / "kubectl"), "--kubeconfig", str(plane.kubeconfig()), *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        output = (await process.communicate())[0].decode()
        assert process.returncode == 0, (output, control.log())
        return output

    fewest, emptied = NEEDED, 0
    async with LabelRouter(admin, SELECTOR) as router:

        async def follow() -> None:
            nonlocal fewest
            while True:
                fewest = min(fewest, len(router.table))
                await asyncio.sleep(0.05)

        async with asyncio.timeout(240):
            while len(router.table) < NEEDED:
                await asyncio.sleep(0.1)
        following = asyncio.create_task(follow())
        router.load(streams_per_s=20, stream_s=2.0)
        for node in NODES:
            before = {p["metadata"]["name"] for p in await _on(admin, node)}
            said = await kubectl("drain", node, "--timeout=300s")
            assert not await _on(admin, node), said
            emptied += len(before)
            await kubectl("uncordon", node)
        while sum(router.counts.values()) < STREAMS:
            await asyncio.sleep(0.2)
        following.cancel()
        await router.finish()
    print("drains", dict(router.counts), fewest, emptied)
    assert emptied >= NEEDED
    assert fewest >= NEEDED
    assert router.counts["broken"] == router.counts["refused"] == 0
    assert router.counts["ok"] >= STREAMS


async def _on(admin: RawApi, node: str) -> list[Any]:
    """The pods on a node."""
    return [pod for pod in (await admin.get(PODS))["items"] if pod["spec"].get("nodeName") == node]
