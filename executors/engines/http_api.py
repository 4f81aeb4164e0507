"""Readiness, liveness, sleep and load of an engine over vLLM's HTTP API. It sets no deadlines; the
caller cancels calls that take too long.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import aiohttp

from executors.engines import metrics_text
from executors.engines.engine_protocol import Contact, Load

log = logging.getLogger(__name__)

_UNREACHABLE = (aiohttp.ClientError, OSError, TimeoutError)


class HttpApi:
    """Base of the engine kinds with vLLM's HTTP API."""

    __slots__ = ()

    async def ready(self, engine: Contact) -> bool:
        """Whether /health returns 200."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/health") as response:
                return response.status == 200
        except _UNREACHABLE:
            return False

    async def alive(self, engine: Contact) -> bool:
        """Whether a completion of one token succeeds. If the core has stopped, the completion hangs
        although /health still returns 200."""
        body = {"model": engine.model, "prompt": "a", "max_tokens": 1, "temperature": 0}
        url = f"http://{engine.endpoint}/v1/completions"
        try:
            async with engine.client.post(url, json=body, headers=_key(engine)) as response:
                await response.read()
                return response.status == 200
        except _UNREACHABLE:
            return False

    async def sleep(self, engine: Contact) -> bool:
        """POST /sleep, which keeps the weights in host memory. Returns whether the engine sleeps:
        both its own report and its metrics, which come from the core, must show this."""
        if not await self._sleeping(engine):
            await self._post(engine, "/sleep?level=1")
        return await self._sleeping(engine) is True and not await self._awake(engine)

    async def wake(self, engine: Contact) -> bool:
        """POST /wake_up. Returns whether the engine reports that it is awake."""
        if await self._sleeping(engine):
            await self._post(engine, "/wake_up")
        return await self._sleeping(engine) is False

    async def _sleeping(self, engine: Contact) -> bool | None:
        """Whether the engine reports that it sleeps; None without a report."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/is_sleeping") as response:
                body = await response.json() if response.status == 200 else {}
        except (*_UNREACHABLE, ValueError):
            return None
        sleeping = body.get("is_sleeping") if isinstance(body, dict) else None
        return sleeping if isinstance(sleeping, bool) else None

    async def _awake(self, engine: Contact) -> bool:
        """Whether the engine's metrics report it as awake; True if the metrics are unreadable."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/metrics") as response:
                return metrics_text.is_awake(await response.text())
        except (*_UNREACHABLE, ValueError):
            return True

    async def _post(self, engine: Contact, path: str) -> None:
        try:
            url = f"http://{engine.endpoint}{path}"
            async with engine.client.post(url, headers=_key(engine)) as response:
                await response.read()
        except _UNREACHABLE:
            pass  # ignore it: the caller checks the result with /is_sleeping

    async def load(self, engine: Contact) -> Load | None:
        """The load in /metrics."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/metrics") as response:
                return metrics_text.parse_load(await response.text())
        except _UNREACHABLE:
            return None
        except (ValueError, UnicodeDecodeError) as error:
            log.warning("%s: %s", engine.endpoint, error)
            return None


def _key(engine: Contact) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
