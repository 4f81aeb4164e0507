"""The questions an executor asks of an engine, over vLLM's HTTP API.

Holds the paths and what counts as an answer. Knows no deadline: the caller cancels.
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
    """Base of the kinds of engines that speak vLLM's HTTP API."""

    __slots__ = ()

    async def ready(self, engine: Contact) -> bool:
        """/health says 200."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/health") as response:
                return response.status == 200
        except _UNREACHABLE:
            return False

    async def alive(self, engine: Contact) -> bool:
        """One completion of one token. The answer of a healthy API server with a stopped core never
        comes, so this hangs where /health still says 200."""
        body = {"model": engine.model, "prompt": "a", "max_tokens": 1, "temperature": 0}
        url = f"http://{engine.endpoint}/v1/completions"
        try:
            async with engine.client.post(url, json=body, headers=_key(engine)) as response:
                await response.read()
                return response.status == 200
        except _UNREACHABLE:
            return False

    async def sleep(self, engine: Contact) -> bool:
        """/sleep, its weights kept in the host's memory. It sleeps if it says so and its metrics,
        which come from the engine's core, no longer say that it is awake."""
        if not await self._sleeping(engine):
            await self._post(engine, "/sleep?level=1")
        return await self._sleeping(engine) is True and not await self._awake(engine)

    async def wake(self, engine: Contact) -> bool:
        """/wake_up."""
        if await self._sleeping(engine):
            await self._post(engine, "/wake_up")
        return await self._sleeping(engine) is False

    async def _sleeping(self, engine: Contact) -> bool | None:
        """What it says; None where it says nothing."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/is_sleeping") as response:
                said = await response.json() if response.status == 200 else {}
        except (*_UNREACHABLE, ValueError):
            return None
        found = said.get("is_sleeping") if isinstance(said, dict) else None
        return found if isinstance(found, bool) else None

    async def _awake(self, engine: Contact) -> bool:
        """Whether its metrics say that it is awake; an engine without them is taken at its word."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/metrics") as response:
                return metrics_text.awake(await response.text())
        except (*_UNREACHABLE, ValueError):
            return True

    async def _post(self, engine: Contact, path: str) -> None:
        try:
            url = f"http://{engine.endpoint}{path}"
            async with engine.client.post(url, headers=_key(engine)) as response:
                await response.read()
        except _UNREACHABLE:
            pass  # what became of it is asked next

    async def load(self, engine: Contact) -> Load | None:
        """What /metrics says."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/metrics") as response:
                return metrics_text.load(await response.text())
        except _UNREACHABLE:
            return None
        except (ValueError, UnicodeDecodeError) as error:
            log.warning("%s: %s", engine.endpoint, error)
            return None


def _key(engine: Contact) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
