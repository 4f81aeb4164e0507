"""A changed pod template under load: a real controller rolls it out on a full owned node."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from tests.kubernetes.conftest import Start
from tests.kubernetes.executor_bench import TEMPLATE
from tests.kubernetes.label_router import LAG_S, LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.real_control import RealControl

PODS, EVENTS = ("/api/v1/namespaces/serving/" + one for one in ("pods", "events"))
SELECTOR = "shoal.dev/model%3Dm,shoal.dev/serving%3Dtrue"
GPUS, STREAMS = 4, 1000
FILE = f"""
mode: act
regions:
  us:
    l4:
      gpu: L4
      per_node: {GPUS}
      nodes: 1
      owned: true
      kubernetes: {{mode: pods, nodes: {{pool: l4}}}}
models:
  m:
    source: Qwen/Qwen3-8B
    slo: {{ttft: 2s, tpot: 100ms}}
    workload: {{input: 200, output: 60}}
    max_len: 4096
    disaggregate: false
    min: {GPUS}
    rollout: {{spare: none, watch: 2s}}
"""


async def teams(admin: RawApi) -> Counter[str]:
    """The serving pods by the label that the template sets."""
    labels = [pod["metadata"]["labels"] for pod in (await admin.get(PODS))["items"]]
    return Counter(one["team"] for one in labels if one["shoal.dev/serving"] == "true")


async def test_a_changed_template_is_rolled_out_on_a_full_node_without_a_broken_stream(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, start: Start
) -> None:
    kubelets("t0", gpus=GPUS, third=87)
    control = RealControl.of(start, tmp_path, FILE)
    template = control.templates / "pod.yaml"
    control.run(plane, "--route-lag", str(LAG_S + 0.5))

    async def until(wanted: Counter[str], limit_s: float) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while await teams(admin) != wanted:
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError(f"{await teams(admin)} {control.log()}") from None

    async with LabelRouter(admin, SELECTOR) as router:
        await until(Counter(serving=GPUS), 120)
        while len(router.table) < GPUS:
            await asyncio.sleep(0.1)
        router.load(streams_per_s=20, stream_s=2.0)
        template.write_text(TEMPLATE.replace("team: serving", "team: other"))
        await until(Counter(other=GPUS), 240)
        while sum(router.counts.values()) < STREAMS:
            await asyncio.sleep(0.2)
        await router.finish()
    print("rollout", dict(router.counts))
    assert router.counts["broken"] == 0
    assert router.counts["ok"] >= STREAMS
    events = [one for one in (await admin.get(EVENTS))["items"] if one["reason"] == "Serving"]
    assert any("1 of version" in one["message"] and "3 of" in one["message"] for one in events)
