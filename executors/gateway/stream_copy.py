"""Copies an engine's event stream to the client, block by block. For speed, each block is copied in
the callback that receives it, because a gateway spends most of its time here.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import orjson

from executors.gateway.engine_exchange import (
    EngineConnectionLost,
    EngineFailedRequest,
    EngineFault,
    RequestRejected,
    engine_error_of,
)
from executors.gateway.event_stream import InvalidEventStream
from executors.gateway.hang_detector import HangDetector
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.named_event_stream import event_stream_of
from executors.gateway.wire.engine_pool import EngineResponse, TransportError
from topics.records import Endpoint

_TAIL_REAL_S = 1.0  # time for the response to end after its last event


class StreamCopy:
    """One stream. first_ns, last_ns: monotonic times of the first and last block with events."""

    __slots__ = (
        "_activity",
        "_answer",
        "_detector",
        "_endpoint",
        "_request",
        "_scope",
        "_unsent",
        "events",
        "first_ns",
        "last_ns",
    )

    def __init__(
        self,
        request: InflightRequest,
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
        self._activity = detector.activity(endpoint)
        self._unsent = b""
        self.events = event_stream_of(request.call)
        self.first_ns = self.last_ns = 0

    async def run(self) -> None:
        """Copy until the stream ends. Raises EngineError if the stream ends before its last
        event."""
        client = self._request.client
        client.on_unblocked = self._on_unblocked
        try:
            await self._answer.pipe(self._on_block)
        except TransportError as error:
            if not self.events.done:
                raise engine_error_of(error) from error
        finally:
            client.on_unblocked = None
        if not self.events.done:
            end = self.events.finish()
            if not end:
                raise EngineConnectionLost("the stream ended before its end")
            self._request.start_response()
            self._forward(end)

    def _on_block(self, block: bytes) -> None:
        request, events = self._request, self.events
        if events.done:
            return
        now_ns = time.monotonic_ns()
        try:
            data = events.feed(block)
        except InvalidEventStream as error:
            raise EngineFault(str(error)) from error
        if not request.response_started:
            if events.failed:
                raise _error_before_first_token(events.error)
            if not (events.done or events.events):
                self._unsent += data
                return  # the client has no output yet, so another instance may be tried
            self.first_ns = now_ns
            request.start_response()
            data, self._unsent = self._unsent + data, b""
        self.last_ns = now_ns
        self._activity.last_s = now_ns / 1e9
        self._forward(data)
        request.gateway_ns += time.monotonic_ns() - now_ns

    def _forward(self, data: bytes) -> None:
        client, done = self._request.client, self.events.done
        if data or done:
            client.write(data, done)
        if done and self._answer.complete:
            return
        if done:
            # The client has the whole answer. Read the rest, so that the connection can be reused.
            asyncio.get_running_loop().call_later(_TAIL_REAL_S, self._answer.close)
        elif client.blocked:
            self._answer.pause()
            self._detector.pause_attempt(self._endpoint, self._scope)

    def _on_unblocked(self) -> None:
        if not self.events.done:
            self._detector.resume_attempt(self._endpoint, self._scope)
        self._answer.resume()


def _error_before_first_token(error: Any) -> Exception:
    """The exception for an error event before any token. The status line was already 200."""
    code = error.get("code") if isinstance(error, dict) else None
    if type(code) is int and 400 <= code < 500:
        return RequestRejected(code, orjson.dumps({"error": error}))
    if error is None:  # the engine aborted the request
        return EngineFault("it stopped before the first token")
    message = error.get("message") if isinstance(error, dict) else error
    return EngineFailedRequest(f"error event before the first token: {str(message)[:200]}")
