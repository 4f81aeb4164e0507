"""The questions an executor asks of an engine, over vLLM's HTTP API.

Holds the paths and what counts as an answer. Knows no deadline: the caller cancels.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import aiohttp

from executors.engines import exposition
from executors.engines.protocol import Contact, Load

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

    async def load(self, engine: Contact) -> Load | None:
        """What /metrics says."""
        try:
            async with engine.client.get(f"http://{engine.endpoint}/metrics") as response:
                return exposition.load(await response.text())
        except _UNREACHABLE:
            return None
        except (ValueError, UnicodeDecodeError) as error:
            log.warning("%s: %s", engine.endpoint, error)
            return None


def _key(engine: Contact) -> Mapping[str, str]:
    return {"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {}
