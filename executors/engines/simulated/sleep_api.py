"""Pause and sleep, as in vLLM with VLLM_SERVER_DEV_MODE=1.

Requests that arrive during a pause or sleep hang and do not count as waiting; after `/resume` or
`/wake_up` they continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import parse_qs

import orjson

from executors.engines.simulated.request_parameters import ApiError
from executors.engines.simulated.simulated_engine import Engine
from executors.engines.simulated.small_http import Request, Responder

METHODS: Mapping[str, str] = MappingProxyType(
    {
        "/pause": "POST",
        "/resume": "POST",
        "/is_paused": "GET",
        "/sleep": "POST",
        "/wake_up": "POST",
        "/is_sleeping": "GET",
    }
)
_MODES = ("abort", "wait", "keep")


class DevMode:
    """The development mode of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: Request, responder: Responder) -> None:
        """Handle a request for a path of `METHODS`. Raises ApiError for bad parameters."""
        query = {key: values[-1] for key, values in parse_qs(request.query).items()}
        engine = self._engine
        if request.path == "/is_paused":
            _respond(responder, is_paused=engine.paused)
        elif request.path == "/is_sleeping":
            _respond(responder, is_sleeping=engine.metrics.asleep > 0)
        elif request.path == "/pause":
            mode = query.get("mode", "abort")
            if mode not in _MODES:
                raise ApiError(
                    400, "Input should be 'abort', 'wait' or 'keep'", "query.mode", "Bad Request"
                )
            self._pause(mode, responder)
        elif request.path == "/sleep":
            level = query.get("level", "1")
            if level not in ("0", "1", "2"):
                raise ApiError(400, "level must be 0, 1 or 2", "query.level", "Bad Request")
            engine.cut()
            engine.pause()
            engine.metrics.asleep = int(level)
            _respond(responder, status="sleeping", level=int(level))
        else:  # /resume, /wake_up
            if request.path == "/wake_up":
                engine.metrics.asleep = 0
            engine.resume()
            _respond(responder, status="awake" if request.path == "/wake_up" else "resumed")

    def _pause(self, mode: str, responder: Responder) -> None:
        if mode == "abort":
            self._engine.cut()
        self._engine.pause(stop_machine=mode != "wait")
        if mode != "wait":
            _respond(responder, status="paused")
            return
        task = asyncio.get_running_loop().create_task(self._pause_when_drained(responder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pause_when_drained(self, responder: Responder) -> None:
        await self._engine.drained()
        _respond(responder, status="paused")


def _respond(responder: Responder, **values: object) -> None:
    responder.respond(200, orjson.dumps(values))
