"""Streams through gateways, as clients in the cluster send them to a Service."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable

import aiohttp

TOKENS = 40


class StreamLoad:
    """Sends each stream to one of the present endpoints, "host:port". counts: finished streams by
    outcome; "ok" is a whole answer."""

    def __init__(self, endpoints: Callable[[], list[str]], model: str) -> None:
        self._endpoints = endpoints
        self._model = model
        self.counts: Counter[str] = Counter()
        self._dice = random.Random(5)
        self._streams: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def sending(self, per_s: float) -> AsyncIterator[None]:
        """Begin `per_s` streams a second. At the end, wait for the running ones."""
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
        endpoints = self._endpoints()
        if not endpoints:
            self.counts["no endpoint"] += 1
            return
        url = f"http://{self._dice.choice(endpoints)}/v1/completions"
        body = {"model": self._model, "prompt": "x", "max_tokens": TOKENS, "stream": True}
        try:
            async with http.post(url, json=body) as answer:
                data = await answer.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.counts[type(error).__name__] += 1
            return
        whole = answer.status == 200 and data.endswith(b"[DONE]\n\n")
        self.counts["ok" if whole else f"{answer.status} {data[-100:]!r}"] += 1
