"""A router that selects pods by label, as an endpoint picker does, and streams through it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter

import aiohttp

from tests.kubernetes.plane.raw_api import RawApi, serves

PODS = "/api/v1/namespaces/serving/pods"
LAG_S = 1.0


class LabelRouter:
    """Sends streams to Ready pods with the serving label. Its table is `LAG_S` old.

    counts: finished streams by outcome: ok, broken (cut), refused (no stream began). fewest:
    smallest number of pods in the table since `load`.
    """

    def __init__(self, admin: RawApi, selector: str, port: int = 8000) -> None:
        self._admin = admin
        self._query = f"{PODS}?labelSelector={selector}"
        self._port = port
        self.table: list[str] = []
        self.fewest = 0
        self.counts: Counter[str] = Counter()
        self._streams: set[asyncio.Task[None]] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._dice = random.Random(3)

    async def __aenter__(self) -> LabelRouter:
        timeout = aiohttp.ClientTimeout(total=120)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True), timeout=timeout
        )
        self._tasks = [asyncio.create_task(self._follow())]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.finish()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.close()

    def load(self, streams_per_s: float, stream_s: float) -> None:
        """Begin to send streams of `stream_s` seconds."""
        self.fewest = len(self.table)
        self._tasks.append(asyncio.create_task(self._load(streams_per_s, stream_s)))

    async def finish(self) -> None:
        """Stop sending, and wait for the running streams."""
        for task in self._tasks[1:]:
            task.cancel()
        if self._streams:
            await asyncio.wait(list(self._streams))

    async def _load(self, streams_per_s: float, stream_s: float) -> None:
        next_s = time.monotonic()
        while True:
            task = asyncio.create_task(self._stream(stream_s))
            self._streams.add(task)
            task.add_done_callback(self._streams.discard)
            next_s += 1 / streams_per_s
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))

    async def _stream(self, stream_s: float) -> None:
        if not self.table:
            self.counts["refused"] += 1
            return
        host = self._dice.choice(self.table)
        url = f"http://{host}:{self._port}/v1/completions?s={stream_s}"
        try:
            async with self._http.post(url) as answer:
                data = await answer.read()
            self.counts["ok" if data.endswith(b"[DONE]\n\n") else "broken"] += 1
        except aiohttp.ClientConnectorError:
            self.counts["refused"] += 1
        except (aiohttp.ClientError, TimeoutError):
            self.counts["broken"] += 1

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, AssertionError):
                pods = (await self._admin.get(self._query))["items"]
                ready = [pod["status"]["podIP"] for pod in pods if serves(pod)]
                loop.call_later(LAG_S, self._take, ready)
            await asyncio.sleep(0.1)

    def _take(self, ready: list[str]) -> None:
        self.table = ready
        self.fewest = min(self.fewest, len(ready))
