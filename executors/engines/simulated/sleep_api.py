"""Pause and sleep, as vLLM offers them with VLLM_SERVER_DEV_MODE=1 and only then.

Holds the paths and what they do to the engine. Requests that come meanwhile hang and are not
counted as waiting; they go on with `/resume` or `/wake_up`.
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


class Dev:
    """The dev mode of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._tasks: set[asyncio.Task[None]] = set()

    def handle(self, request: Request, responder: Responder) -> None:
        """One request for a path of `METHODS`; ApiError for what is not understood."""
        query = {key: values[-1] for key, values in parse_qs(request.query).items()}
        engine = self._engine
        if request.path == "/is_paused":
            _say(responder, is_paused=engine.paused)
        elif request.path == "/is_sleeping":
            _say(responder, is_sleeping=engine.metrics.asleep > 0)
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
            _say(responder, status="sleeping", level=int(level))
        else:  # /resume, /wake_up
            if request.path == "/wake_up":
                engine.metrics.asleep = 0
            engine.resume()
            _say(responder, status="awake" if request.path == "/wake_up" else "resumed")

    def _pause(self, mode: str, responder: Responder) -> None:
        if mode == "abort":
            self._engine.cut()
        self._engine.pause(stand=mode != "wait")
        if mode != "wait":
            _say(responder, status="paused")
            return
        task = asyncio.get_running_loop().create_task(self._pause_when_drained(responder))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _pause_when_drained(self, responder: Responder) -> None:
        await self._engine.drained()
        _say(responder, status="paused")


def _say(responder: Responder, **values: object) -> None:
    responder.respond(200, orjson.dumps(values))
