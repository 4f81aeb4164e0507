"""`kubectl drain` with Shoal's disruption budget."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm_tools import tools
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi

PODS = "/api/v1/namespaces/serving/pods"
_BUDGETS = "/apis/policy/v1/namespaces/serving/poddisruptionbudgets"
_BUDGET = Path(__file__).parents[2] / "deploy" / "kubernetes" / "disruption-budget.yaml"


@asynccontextmanager
async def disruption_budget(admin: RawApi) -> AsyncIterator[None]:
    """Shoal's disruption budget, once its controller knows it."""
    manifest = yaml.safe_load(_BUDGET.read_text())
    path = f"{_BUDGETS}/{manifest['metadata']['name']}"
    await admin.post(_BUDGETS, manifest)
    async with asyncio.timeout(30):
        while "conditions" not in (await admin.get(path)).get("status", {}):
            await asyncio.sleep(0.1)
    yield
    await admin.delete(path)


async def drain(plane: ControlPlane, admin: RawApi, node: str) -> int:
    """`kubectl drain` without --force, which ends when the node is empty, and `uncordon`. Returns
    the number of pods that the node had."""
    before = len(await pods_on(admin, node))
    said = await kubectl(plane, "drain", node, "--timeout=300s")
    assert not await pods_on(admin, node), said
    await kubectl(plane, "uncordon", node)
    return before


async def kubectl(plane: ControlPlane, *words: str) -> str:
    """The output of kubectl."""
    process = await asyncio.create_subprocess_exec(
        str(tools() / "kubectl"), "--kubeconfig", str(plane.kubeconfig()), *words,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    return output


async def pods_on(admin: RawApi, node: str) -> list[Any]:
    """The pods on a node."""
    return [pod for pod in (await admin.get(PODS))["items"] if pod["spec"].get("nodeName") == node]
