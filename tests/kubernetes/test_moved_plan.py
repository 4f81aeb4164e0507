"""A full cluster, a real controller and a real executor: the plan moves to another pool."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from executors.kafka_client import KafkaClient
from tests.kubernetes.conftest import Start
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.real_control import RealControl
from topics.records import InstanceState, PlanRecord, Status

PODS = "/api/v1/namespaces/serving/pods"
FULL, FREE = "us/full/on-demand", "us/free/on-demand"
FILE = """
mode: act
regions:
  us:
    full: {gpu: L4, per_node: 1, max: 2, price: 0.5, kubernetes: {mode: pods, nodes: {pool: full}}}
    free: {gpu: L4, per_node: 1, max: 2, price: 5.0, kubernetes: {mode: pods, nodes: {pool: free}}}
models:
  m:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {input: 200, output: 60}
    max_len: 4096
    min: 1
"""


def pools_of(plan: PlanRecord) -> set[str]:
    """The pools that a plan uses."""
    return {pool for pool in (FULL, FREE) for one in plan.targets if f"@{pool}" in one.combo}


async def test_a_full_cluster_moves_the_plan_to_another_pool_within_one_solve(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, start: Start
) -> None:
    kubelets("full-0", gpus=1, labels=("pool=full",), third=85)
    kubelets("free-0", gpus=1, labels=("pool=free",), third=86)
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "e", "image": "e", "resources": limits}
    spec = {"containers": [container], "nodeSelector": {"pool": "full"}}
    await admin.post(PODS, {"metadata": {"name": "foreign"}, "spec": spec})
    control = RealControl.of(start, tmp_path, FILE)
    plans: list[PlanRecord] = []
    states: dict[str, set[InstanceState]] = {FULL: set(), FREE: set()}
    failed_in: list[int] = []
    reasons: list[str] = []

    def follow(_topic: str, _key: str, record: PlanRecord | Status, _append_ms: int) -> None:
        if isinstance(record, PlanRecord):
            plans.append(record)
            return
        states[record.pool] = {one.state for one in record.instances}
        if InstanceState.FAILED in states[FULL] and not failed_in:
            failed_in.append(plans[-1].number)
            reasons.extend(one.reason for one in record.instances)

    async with KafkaClient(control.bootstrap, "test") as kafka:
        kafka.follow(("plans", "status"), follow)
        control.run(plane)
        try:
            async with asyncio.timeout(400):
                while InstanceState.READY not in states[FREE]:
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"{states} {plans} {control.log()}") from None
    assert [reason.partition(":")[0] for reason in reasons] == ["no node"]
    before = next(plan for plan in plans if plan.number == failed_in[0])
    # A record without targets is no solve: it shows the fleet without the failed group.
    after = [plan for plan in plans if plan.number > before.number and plan.targets]
    print("plans", [pools_of(plan) for plan in (before, *after)], reasons)
    assert pools_of(before) == {FULL}
    assert pools_of(after[0]) == {FREE}
