"""One stream passing through: each block goes from the engine's socket to the client's at once.

Owns what happens per block, in the callback that received it, because this is where a gateway
spends its time. What the end of the stream means is the relay's business.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from executors.gateway.engine_exchange import (
    EngineFailedRequest,
    EngineFaulty,
    EngineLost,
    EngineRefused,
    failure_of,
)
from executors.gateway.event_stream import BrokenStream, EventStream
from executors.gateway.hang_detector import HangDetector
from executors.gateway.inflight_request import Request
from executors.gateway.wire.engine_pool import EngineResponse, TransportError
from topics.records import Endpoint

_TAIL_REAL_S = 1.0  # for the end of an answer whose last event was passed on already


class Passing:
    """first_ns, last_ns: monotonic times of the first and the last block with events."""

    __slots__ = (
        "_answer",
        "_detector",
        "_endpoint",
        "_held",
        "_request",
        "_scope",
        "_voice",
        "events",
        "first_ns",
        "last_ns",
    )

    def __init__(
        self,
        request: Request,
        answer: EngineResponse,
        detector: HangDetector,
        endpoint: Endpoint,
        scope: asyncio.Timeout,
    ) -> None:
        self._request = request
        self._answer = answer
        self._detector = detector
        self._endpoint = endpoint
        self._scope = scope
        self._voice = detector.voice(endpoint)
        self._held = b""
        self.events = EventStream(strip_usage=not request.call.usage_wanted)
        self.first_ns = self.last_ns = 0

    async def run(self) -> None:
        """Until the stream has ended; EngineError if it ended too early."""
        client = self._request.client
        client.on_unblocked = self._go_on
        try:
            await self._answer.pipe(self._block)
        except TransportError as error:
            if not self.events.done:
                raise failure_of(error) from error
        finally:
            client.on_unblocked = None
        if not self.events.done:
            end = self.events.finish()
            if not end:
                raise EngineLost("the stream ended before its end")
            self._request.begin()
            self._pass(end)

    def _block(self, block: bytes) -> None:
        request, events = self._request, self.events
        if events.done:
            return
        now_ns = time.monotonic_ns()
        try:
            data = events.feed(block)
        except BrokenStream as error:
            raise EngineFaulty(str(error)) from error
        if not request.started:
            if events.failed:
                raise _first_error(events.error)
            if not (events.done or events.events):
                self._held += data
                return  # nothing of worth yet: it may still be tried elsewhere
            self.first_ns = now_ns
            request.begin()
            data, self._held = self._held + data, b""
        self.last_ns = now_ns
        self._voice.last_s = now_ns / 1e9
        self._pass(data)
        request.own_ns += time.monotonic_ns() - now_ns

    def _pass(self, data: bytes) -> None:
        client, done = self._request.client, self.events.done
        if data or done:
            client.write(data, done)
        if done and self._answer.complete:
            return
        if done:
            # The rest is only for the connection's sake: the client has everything.
            asyncio.get_running_loop().call_later(_TAIL_REAL_S, self._answer.close)
        elif client.blocked:
            self._answer.pause()
            self._detector.ignore(self._endpoint, self._scope)

    def _go_on(self) -> None:
        if not self.events.done:
            self._detector.listen(self._endpoint, self._scope)
        self._answer.resume()


def _first_error(error: Any) -> Exception:
    """What an error event means that comes before any token: the status line said 200 already."""
    code = error.get("code") if isinstance(error, dict) else None
    if type(code) is int and 400 <= code < 500:
        return EngineRefused(code, orjson.dumps({"error": error}))
    if error is None:  # an abort, which is no answer to this request
        return EngineFaulty("it was stopped before the first token")
    message = error.get("message") if isinstance(error, dict) else error
    return EngineFailedRequest(f"an error event before the first token: {str(message)[:200]}")
