"""An upgrade without Kafka: the next single pod serves before the former one ends.

The test takes the place of kubelet and Service: a pod is an endpoint while its probe says Ready,
until it is deleted; SIGTERM comes after the chart's preStop of 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.kubernetes.plane.control_plane import ControlPlane
from tests.kubernetes.plane.raw_api import RawApi
from tests.kubernetes.test_scale_mode import APPS, workload
from tests.kubernetes.test_single_restart import PODS, Single

STREAMS, PRE_STOP_S, TOKENS = 1000, 5.0, 40


class Service:
    """Sends streams to gateways. endpoints: their ports. counts: finished streams by outcome."""

    def __init__(self) -> None:
        self.endpoints: list[int] = []
        self.counts: Counter[str] = Counter()
        self._dice = random.Random(5)
        self._streams: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def load(self, per_s: float) -> AsyncIterator[None]:
        """Begin `per_s` streams a second."""
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector) as http:
            sending = asyncio.create_task(self._send(http, per_s))
            try:
                yield
            finally:
                sending.cancel()
                await asyncio.gather(*self._streams)

    async def _send(self, http: aiohttp.ClientSession, per_s: float) -> None:
        while True:
            task = asyncio.create_task(self._stream(http))
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
            await asyncio.sleep(1 / per_s)

    async def _stream(self, http: aiohttp.ClientSession) -> None:
        if not self.endpoints:
            self.counts["no endpoint"] += 1
            return
        url = f"http://127.0.0.1:{self._dice.choice(self.endpoints)}/v1/completions"
        body = {"model": "m", "prompt": "x", "max_tokens": TOKENS, "stream": True}
        try:
            async with http.post(url, json=body) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.counts[type(error).__name__] += 1
            return
        whole = answer.status == 200 and data.endswith(b"[DONE]\n\n")
        self.counts["ok" if whole else f"{answer.status} {data[-100:]!r}"] += 1


@pytest.mark.parametrize("mode", ["pods", "scale"])
async def test_an_upgrade_of_the_single_pod_refuses_no_request_and_breaks_no_stream(
    plane: ControlPlane, kubelets: Any, admin: RawApi, tmp_path: Path, mode: str
) -> None:
    nodes = [f"up-{mode}-{n}" for n in range(6)]
    kubelets(*nodes, gpus=1, labels=("pool=l4",), third={"pods": 92, "scale": 93}[mode])
    if mode == "scale":
        await admin.post(f"{APPS}/deployments", workload(2))
    tries = [tmp_path / name for name in ("former", "next")]
    for folder in tries:
        folder.mkdir()
    account = plane.kubeconfig(f"shoal-{mode}")
    former, following = (Single(folder, account, mode, folder.name) for folder in tries)
    service = Service()

    async def uids() -> set[str]:
        return {pod["metadata"]["uid"] for pod in (await admin.get(PODS))["items"]}

    async with contextlib.AsyncExitStack() as stack:
        old = await stack.enter_async_context(contextlib.AsyncExitStack())
        await old.enter_async_context(former.running("l4"))
        await former.until(former.steady)
        await former.until(former.answers)
        service.endpoints, before = [former.gateway], await uids()
        async with service.load(per_s=10):
            await asyncio.sleep(3)
            await stack.enter_async_context(following.running("l4"))
            await following.until(following.is_ready)
            service.endpoints = [former.gateway, following.gateway]
            await asyncio.sleep(1)
            service.endpoints = [following.gateway]
            await asyncio.sleep(PRE_STOP_S)
            await old.aclose()
            await following.until(following.steady)
            while sum(service.counts.values()) < STREAMS:
                await asyncio.sleep(0.5)
        print("upgrade", mode, dict(service.counts))
        assert set(service.counts) == {"ok"}
        assert await uids() == before
        assert await following.steady()
        lease = "/apis/coordination.k8s.io/v1/namespaces/serving/leases/shoal-single"
        assert (await admin.get(lease))["spec"]["holderIdentity"] == "next"
