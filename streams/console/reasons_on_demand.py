"""Alternatives to the last plan of a model, computed in a process when a page asks for them.

At most one process runs at a time. An answer is kept until the model has a newer plan request.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from streams.health.controller_facts import Facts
from topics.codec import write_value

log = logging.getLogger(__name__)

LIMIT_S = 25.0
_MOST_KEPT = 200
Ask = Callable[[bytes], Awaitable[bytes]]


class ReasonsOnDemand:
    """Computes the reasons of a plan when a viewer requests them. ask: sends a request to a process
    and returns its answer."""

    def __init__(self, facts: Facts, ask: Ask | None = None) -> None:
        self._facts = facts
        self._ask = ask or in_process
        self._one = asyncio.Lock()
        self._kept: dict[str, tuple[int, dict[str, Any]]] = {}

    async def of(self, model: str) -> dict[str, Any]:
        """The reasons, as {"reasons": ..., "at": ms of the request}, or {"error": why}."""
        if self._facts.leading() is None or model not in self._facts.asked:
            return {"error": "no plan of this model yet"}
        request, cluster = self._facts.asked[model]
        known = self._kept.get(model)
        if known is not None and known[0] == request.number:
            return known[1]
        if self._one.locked():
            return {"error": "another model's alternatives are being computed; ask again"}
        async with self._one:
            asked = write_value({"request": request, "cluster": cluster, "model": model})
            try:
                async with asyncio.timeout(LIMIT_S):
                    answer = await self._ask(asked)
                reasons = orjson.loads(answer)
            except (TimeoutError, OSError, orjson.JSONDecodeError) as error:
                log.warning("console: alternatives of %s: %s", model, error or "no answer in time")
                return {"error": f"no answer within {LIMIT_S:g} s"}
        found = {"reasons": reasons, "at": request.at_ms}
        self._kept[model] = request.number, found
        while len(self._kept) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return found


async def in_process(asked: bytes) -> bytes:
    """The answer of a new process. The process is killed if the caller is cancelled."""
    argv = [sys.executable, "-m", "streams.solver.plan_reasons"]
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        answer, _ = await process.communicate(asked)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return answer
