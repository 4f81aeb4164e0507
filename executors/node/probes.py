"""Asking engines how they are.

Holds the deadlines and what is asked when. Knows no assignment and no process.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from executors.engines.protocol import Contact, EngineKind, Load

_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class Answered:
    """healthy: it said so. load: None when it was not asked or not told."""

    healthy: bool
    load: Load | None = None


async def probe(kind: EngineKind, engine: Contact, with_load: bool) -> Answered:
    """One look at the engine; never raises for what an engine does."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if not await kind.ready(engine):
                return Answered(False)
            return Answered(True, await kind.load(engine) if with_load else None)
    except TimeoutError:
        return Answered(False)
