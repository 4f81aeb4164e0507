"""Who is at fault when an engine answers 500: the engine, or the request.

Asks the engines; one question for all requests that want its answer at the same time. What follows
from it is the relay's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from typing import Any

from executors.gateway.engine_exchange import Engines
from topics.records import Endpoint

_FAILURES_TO_BLAME = 2


class FaultChecks:
    """verify_real_s: real seconds between an engine's own error and the look at it."""

    def __init__(self, engines: Engines, verify_real_s: float) -> None:
        self._engines = engines
        self._verify_real_s = verify_real_s
        self._lives: dict[Endpoint, asyncio.Task[bool]] = {}
        self._generates: dict[Endpoint, asyncio.Task[bool]] = {}

    async def still_alive(self, model: str, endpoint: Endpoint) -> bool:
        """Whether `endpoint` survived its own error."""

        async def look() -> bool:
            await asyncio.sleep(self._verify_real_s)
            return await self._engines.alive(endpoint, model, generate=False)

        return await _shared(self._lives, endpoint, look())

    async def is_to_blame(self, model: str, endpoints: Collection[Endpoint]) -> bool:
        """Whether a request is at fault that `endpoints`, one an attempt, answered with 500: there
        were enough attempts, and each of these instances makes a token for others."""
        if len(endpoints) < _FAILURES_TO_BLAME:
            return False
        asked = [
            _shared(self._generates, at, self._engines.alive(at, model, generate=True))
            for at in frozenset(endpoints)
        ]
        return all(await asyncio.gather(*asked))

    def close(self) -> None:
        """Nothing is asked any more."""
        for task in (*self._lives.values(), *self._generates.values()):
            task.cancel()


async def _shared(
    under_way: dict[Endpoint, asyncio.Task[bool]],
    endpoint: Endpoint,
    question: Coroutine[Any, Any, bool],
) -> bool:
    """The answer to `question`, or to the same one that is under way. A client that leaves does not
    end it for others."""
    task = under_way.get(endpoint)
    if task is None:
        task = under_way[endpoint] = asyncio.create_task(question)
        task.add_done_callback(lambda _: under_way.pop(endpoint, None))
    else:
        question.close()
    return await asyncio.shield(task)
