"""`shoal single` on a real control plane: a restart of its pod, as at each upgrade, keeps all pods.

The embedded broker forgets everything at the end, so the new controller knows the fleet from the
executor's statuses alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.integration.child_processes import modules_of
from tests.kubernetes.executor_bench import write_engine
from tests.kubernetes.label_router import LabelRouter
from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, workload

PODS = "/api/v1/namespaces/serving/pods"
INSTANCES = 3
FILE = """
mode: act
regions:
  us:
POOLS
models:
  m:
    source: Qwen/Qwen3-8B
    slo: {ttft: 2s, tpot: 100ms}
    workload: {input: 200, output: 60}
    max_len: 4096
    disaggregate: false
    min: 3
"""
POOL = (
    "    NAME: {gpu: L4, per_node: 1, owned: true, nodes: 6, "
    "kubernetes: {mode: MODE, nodes: {pool: l4}}}"
)
SELECTOR = {"pods": "shoal.dev/model%3Dm,shoal.dev/serving%3Dtrue",
            "scale": "app%3Dengine,shoal.dev/serving%3Dtrue"}  # fmt: skip


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Single:
    """The process tree of the chart's single pod. It starts and ends like a container. holder: name
    of the pod, "" = its executor shares no Lease. tls: folder of the certificate with which
    gateways of other pods reach the broker; None = its own gateway is the only one."""

    def __init__(
        self,
        folder: Path,
        kubeconfig: Path,
        mode: str,
        holder: str = "",
        tls: Path | None = None,
    ) -> None:
        self._folder, self.mode = folder, mode
        self.controller, self.gateway, self.broker = free_port(), free_port(), free_port()
        self.pid, self._killed = 0, False
        templates, vllm = write_engine(folder)
        listen = (f"--broker-listen=127.0.0.1:{self.broker}", f"--broker-tls={tls}")
        self._options = (
            f"--controller=--http 127.0.0.1:{self.controller} --record ''",
            *((f"--gateway=--port {self.gateway}",) if tls is None else listen),
            "--executor=--kubernetes --namespace serving --route-lag 1.5 "
            f"--kubeconfig {kubeconfig} --vllm {vllm} --pod-templates {templates}"
            + (f" --id ex --lease shoal-single/{holder} --standby-reports" if holder else ""),
        )

    @contextlib.asynccontextmanager
    async def running(self, *pools: str) -> AsyncIterator[None]:
        (self._folder / "shoal.yaml").write_text(self.text(*pools))
        with (self._folder / "log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "streams.cli.entry", "single",
                f"--config={self._folder / 'shoal.yaml'}", "--grace-s=20", *self._options,
                stdout=log, stderr=log,
            )  # fmt: skip
        self.pid = process.pid
        try:
            yield
        finally:
            if not self._killed:
                process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(60):
                assert await process.wait() == (-signal.SIGKILL if self._killed else 0)

    def kill(self) -> None:
        """Kill it; its parts end with it."""
        self._killed = True
        os.kill(self.pid, signal.SIGKILL)

    def text(self, *pools: str) -> str:
        """The shoal.yaml with `pools`."""
        lines = "\n".join(POOL.replace("NAME", name) for name in pools)
        return FILE.replace("POOLS", lines).replace("MODE", self.mode)

    async def until(self, condition: Callable[[], Awaitable[object]], limit_s: float = 300) -> None:
        try:
            async with asyncio.timeout(limit_s):
                while not await condition():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            raise AssertionError((self._folder / "log").read_text()[-5000:]) from None

    async def status(self) -> dict[str, Any]:
        """The controller's status; {} before its first tick."""
        url = f"http://127.0.0.1:{self.controller}/v1/status"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with aiohttp.ClientSession() as http, http.get(url) as answer:
                found = await answer.json()
                return found if found.get("models") else {}
        return {}

    async def is_ready(self) -> bool:
        """Whether the pod is Ready, by the probe of the chart."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession() as http,
                http.get(f"http://127.0.0.1:{self.controller}/readyz") as answer,
            ):
                return answer.status == 200
        return False

    async def steady(self) -> bool:
        """Whether all instances are ready and none is too many."""
        found = await self.status()
        return bool(found) and [
            (one["wanted"], one["ready"]) for one in found["models"]
        ] == [(INSTANCES, INSTANCES)]  # fmt: skip

    async def answers(self) -> bool:
        """Whether the gateway serves a request."""
        url = f"http://127.0.0.1:{self.gateway}/v1/completions"
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with (
                aiohttp.ClientSession() as http,
                http.post(url, json={"model": "m", "prompt": "x", "max_tokens": 1}) as answer,
            ):
                return answer.status == 200
        return False


@pytest.mark.parametrize("mode", ["pods", "scale"])
async def test_a_restart_adopts_the_fleet_and_breaks_no_stream(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, mode: str
) -> None:
    """The upgrade adds a pool, in which a controller that knew no instance would start its own."""
    third = {"pods": 87, "scale": 88}[mode]
    nodes = [f"one-{mode}-{n}" for n in range(6)]
    kubelets(*nodes, gpus=1, labels=("pool=l4",), third=third)
    single = Single(tmp_path, plane.kubeconfig(f"shoal-{mode}"), mode)
    if mode == "scale":
        await admin.post(f"{APPS}/deployments", workload(2))
    seen: dict[str, str] = {}

    async def watch() -> None:
        while True:
            for pod in (await admin.get(PODS))["items"]:
                seen[pod["metadata"]["uid"]] = pod["metadata"]["name"]
            await asyncio.sleep(0.2)

    async def serving() -> dict[str, str]:
        """Instance of each pod that serves, by the uid of the pod."""
        pods = (await admin.get(f"{PODS}?labelSelector={SELECTOR[mode]}"))["items"]
        return {
            pod["metadata"]["uid"]: pod["metadata"]["labels"]["shoal.dev/instance"]
            for pod in pods
            if not pod["metadata"].get("deletionTimestamp")
        }

    watching = asyncio.create_task(watch())
    try:
        async with LabelRouter(admin, SELECTOR[mode]) as router:
            async with single.running("l4"):
                await single.until(single.steady)
                await single.until(single.answers)
                before, made = await serving(), dict(seen)
                assert len(before) == INSTANCES
                async with asyncio.timeout(20):
                    while len(router.table) < INSTANCES:
                        await asyncio.sleep(0.1)
                router.load(streams_per_s=10, stream_s=3.0)
                await asyncio.sleep(5)
            async with single.running("a4", "l4"):
                await single.until(single.steady)
                await single.until(single.answers)
                # Long enough for a drain or a launch that the first plans would order.
                await asyncio.sleep(30)
                assert await single.steady()
                assert await serving() == before
                assert seen == made
            await router.finish()
            print(mode, dict(router.counts), json.dumps(before))
            assert router.counts["broken"] == router.counts["refused"] == 0
            assert router.counts["ok"] > 300
    finally:
        watching.cancel()


async def test_a_part_that_is_killed_starts_again_while_the_gateway_serves(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path
) -> None:
    kubelets(*(f"kill-{n}" for n in range(6)), gpus=1, labels=("pool=l4",), third=89)
    single = Single(tmp_path, plane.kubeconfig("shoal-pods"), "pods", "first")

    async def uids() -> set[str]:
        return {pod["metadata"]["uid"] for pod in (await admin.get(PODS))["items"]}

    async with single.running("l4"):
        await single.until(single.steady)
        await single.until(single.answers)
        pods, failed = await uids(), 0

        async def ask() -> None:
            nonlocal failed
            while True:
                failed += not await single.answers()
                await asyncio.sleep(0.3)

        asking = asyncio.create_task(ask())
        for part in ("controller", "kubernetes"):
            await asyncio.sleep(10)  # parts that end sooner are not started again
            former = modules_of(single.pid)[part]
            os.kill(former, signal.SIGKILL)
            async with asyncio.timeout(60):
                while modules_of(single.pid).get(part, former) == former:
                    await asyncio.sleep(0.1)
            await single.until(single.is_ready)
            await single.until(single.steady)
        await asyncio.sleep(15)  # long enough for a drain or a launch that the plans would order
        assert await single.steady() and not asking.done()
        asking.cancel()
        assert failed == 0 and await uids() == pods
