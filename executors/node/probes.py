"""Asking engines how they are.

Owns the HTTP questions and their deadlines. Knows no assignment and no process.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import aiohttp

from executors.engines.protocol import EngineKind, Load

log = logging.getLogger(__name__)

_TIMEOUT = aiohttp.ClientTimeout(total=2.0)


@dataclass(frozen=True, slots=True)
class Answered:
    """healthy: /health said 200. load: None when it was not asked or not told."""

    healthy: bool
    load: Load | None = None


async def probe(
    client: aiohttp.ClientSession, kind: EngineKind, endpoint: str, with_load: bool
) -> Answered:
    """One look at the engine at `endpoint`; never raises for what an engine does."""
    base = f"http://{endpoint}"
    try:
        async with client.get(base + "/health", timeout=_TIMEOUT) as response:
            if response.status != 200:
                return Answered(False)
        if not with_load:
            return Answered(True)
        async with client.get(base + "/metrics", timeout=_TIMEOUT) as response:
            return Answered(True, kind.load(await response.text()))
    except (aiohttp.ClientError, OSError, TimeoutError):
        return Answered(False)
    except (ValueError, UnicodeDecodeError) as error:
        log.warning("%s: %s", endpoint, error)
        return Answered(True)
