"""`kubectl drain` of each node in turn, under load, with a real controller and executor."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.kubernetes.conftest import Start
from tests.kubernetes.drains import disruption_budget, drain
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.real_control import RealControl

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


async def test_a_drain_of_each_node_in_turn_breaks_no_stream_and_keeps_the_capacity(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, start: Start
) -> None:
    """One of three nodes is spare, and both engines of a node may leave together. `kubectl drain`
    without --force ends when the node is empty.
    """
    kubelets(*NODES, gpus=GPUS, labels=("pool=drained",), third=88)
    control = RealControl.of(start, tmp_path, FILE)
    control.run(plane, "--route-lag", str(LAG_S + 0.5))

    async with disruption_budget(admin), LabelRouter(admin, SELECTOR) as router:
        async with asyncio.timeout(240):
            while len(router.table) < NEEDED:
                await asyncio.sleep(0.1)
        router.load(streams_per_s=20, stream_s=2.0)
        emptied = sum([await drain(plane, admin, node) for node in NODES])
        while sum(router.counts.values()) < STREAMS:
            await asyncio.sleep(0.2)
        fewest = router.fewest
        await router.finish()
    print("drains", dict(router.counts), fewest, emptied)
    assert emptied >= NEEDED
    assert fewest >= NEEDED
    assert router.counts["broken"] == router.counts["refused"] == 0
    assert router.counts["ok"] >= STREAMS
