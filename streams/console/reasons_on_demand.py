"""Alternatives to the last plan of a model, or to the plan behind a decision.

A process computes them when a page requests them. At most one process runs at a time. The last
answers are kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from streams.console.plan_requests import Asked, Key, PlanRequests
from streams.health.controller_facts import Facts
from topics.codec import write_value
from topics.error_text import error_text

log = logging.getLogger(__name__)

_LIMIT_S = 25.0
_MOST_KEPT = 200
Ask = Callable[[bytes], Awaitable[bytes]]


class ReasonsOnDemand:
    """Computes the reasons of a plan when a viewer requests them. requests: the plan requests of
    decisions. ask: sends a request to a process and returns its answer. limit_s: seconds until an
    answer counts as missing."""

    def __init__(
        self,
        facts: Facts,
        requests: PlanRequests,
        ask: Ask | None = None,
        limit_s: float = _LIMIT_S,
    ) -> None:
        self._facts = facts
        self._requests = requests
        self._ask = ask or in_process
        self._limit_s = limit_s
        self._one = asyncio.Lock()
        self._kept: dict[tuple[str, int], dict[str, Any]] = {}

    async def of_model(self, model: str) -> dict[str, Any]:
        """The reasons of the model's last plan, as {"reasons": ..., "at": ms of the request,
        "sizing": way from the rate to the needed capacity}, or {"error": why}."""
        asked, sizing = self._facts.asked.get(model), self._facts.sizing(model)
        if asked is None or sizing is None:
            return {"error": "no plan of this model yet"}
        return {**await self._reasons(model, asked), "sizing": sizing}

    async def of_decision(self, model: str, key: Key) -> dict[str, Any]:
        """The reasons of the plan that led to a decision on `model`, or {"error": why}."""
        asked = self._requests.of(key)
        if asked is None or model not in asked[0].scope:
            return {"error": "the plan of this decision is no longer kept"}
        return await self._reasons(model, asked)

    async def _reasons(self, model: str, asked: Asked) -> dict[str, Any]:
        request, cluster = asked
        key = model, request.number
        if key in self._kept:
            return self._kept[key]
        if self._one.locked():
            return {"error": "another plan's alternatives are being computed", "busy": True}
        async with self._one:
            question = write_value({"request": request, "cluster": cluster, "model": model})
            try:
                async with asyncio.timeout(self._limit_s):
                    answer = await self._ask(question)
                reasons = orjson.loads(answer)
            except (TimeoutError, OSError, orjson.JSONDecodeError) as error:
                log.warning(
                    "console: alternatives of %s: %s", model, error_text(error, "no answer in time")
                )
                return {"error": f"no answer within {self._limit_s:g} s"}
        self._kept[key] = found = {"reasons": reasons, "at": request.at_ms}
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
