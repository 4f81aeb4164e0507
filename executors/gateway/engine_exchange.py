"""One exchange with one engine, and what its failures mean.

Owns the classes of failure, and which of them allow that a request goes to another engine: only
those where the request surely did not harm the first one. Knows nothing of routes or of clients.
"""

from __future__ import annotations

import asyncio
import re
from types import TracebackType

import orjson

from executors.gateway.gateway_settings import Settings
from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.engine_pool import (
    EnginePool,
    EngineResponse,
    NoFileDescriptors,
    TransportError,
)
from topics.records import Endpoint

# Shorter than the 5 s after which vLLM closes an idle connection, so that we never write into one.
_KEEP_ALIVE_REAL_S = 3.0
_MOST_ANSWER_BYTES = 64 * 1024 * 1024
_PROGRESS = re.compile(
    rb"^vllm:(?:generation_tokens|prompt_tokens|request_success)_total\S* (\S+)", re.M
)


class EngineError(Exception):
    """This instance did not answer the request.

    resend: another one may be asked. False where the request may have been what ended the engine:
    a request that kills engines must not kill a second one. ejects: it serves nobody until a
    probe succeeds. status: what the client is told.
    """

    resend = False
    ejects = False
    status = 502


class EngineUnreached(EngineError):
    """It never got the request."""

    resend = True
    ejects = True


class EngineGone(EngineError):
    """It answered that it does not serve this (503, or 404: another model sits there now)."""

    resend = True
    ejects = True


class EngineLost(EngineError):
    """It had the request when its connection broke: it may have died of it."""

    ejects = True


class EngineStalled(EngineError):
    """It did not finish this request in time; whether it hangs is judged by all its requests."""

    status = 504


class EngineFaulty(EngineError):
    """It answered with its own error. Whether it still lives must be looked at before the request
    goes elsewhere: an engine that dies of a request often says 500 first."""

    resend = True


class OwnShortage(EngineError):
    """This process cannot open more connections; nobody is to blame."""

    status = 503


class EngineFailedRequest(EngineFaulty):
    """It answered this request with 500, as it does to a request that its core cannot carry out.
    Where two attempts end so, and the instances answer others, it is the request."""


class EngineRefused(Exception):
    """It refused the request for what the request is (4xx): no other instance would take it."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class Engines:
    """HTTP to all engines, over one pool of connections without a limit."""

    def __init__(self, settings: Settings) -> None:
        self._pool = EnginePool(settings.connect_real_s, _KEEP_ALIVE_REAL_S, _MOST_ANSWER_BYTES)
        key = settings.engine_key
        self._key = f"Authorization: Bearer {key}\r\n".encode() if key else b""
        self._tidying: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Engines:
        self._tidying = asyncio.create_task(self._tidy())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._tidying is not None:
            self._tidying.cancel()
        self._pool.close()

    async def post(
        self, endpoint: Endpoint, model: str, path: str, body: Blocks, headers: bytes
    ) -> EngineResponse:
        """The answer of `endpoint`, its status 200; EngineError or EngineRefused otherwise.

        headers: rendered lines. The caller closes the answer.
        """
        head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s" % (
            path.encode(),
            endpoint.address.encode(),
            headers + self._key + b"Content-Length: %d\r\n\r\n" % sum(map(len, body)),
        )
        try:
            try:
                answer = await self._pool.send(endpoint.address, head, *body)
            except TransportError as error:
                if not error.stale:
                    raise
                # It closed a kept connection, or died of this request: ask it once more, and
                # nobody else if that fails.
                try:
                    answer = await self._pool.send(
                        endpoint.address, head, *body, new_connection=True
                    )
                except TransportError as again:
                    raise EngineLost(str(again)) from again
            if answer.status == 200:
                return answer
            text = await answer.read()
        except TransportError as error:
            raise failure_of(error) from error
        except NoFileDescriptors as error:
            raise OwnShortage(str(error)) from error
        status = answer.status
        shown = f"status {status}: {text[:200].decode(errors='replace')}"
        if status == 503:
            raise EngineGone(shown)
        if status == 404 and not await self._serves(endpoint, model):
            raise EngineGone(shown)
        if status == 500:
            raise EngineFailedRequest(shown)
        if status > 500 or status < 400:
            raise EngineFaulty(shown)
        raise EngineRefused(status, text)

    async def alive(
        self, endpoint: Endpoint, model: str, generate: bool, limit_s: float = 5.0
    ) -> bool:
        """Whether `endpoint` may be used again: healthy and, if asked, able to make one token.

        An engine that hangs still says that it is healthy, so health alone proves nothing there.
        """
        status, _ = await self._ask(endpoint, "GET", "/health", b"", limit_s)
        if status != 200 or not generate:
            return status == 200
        body = orjson.dumps({"model": model, "prompt": "a", "max_tokens": 1})
        status, _ = await self._ask(endpoint, "POST", "/v1/completions", body, limit_s)
        return 200 <= status < 500  # an embedding model has no completions

    async def progress(self, endpoint: Endpoint) -> float:
        """Tokens and requests that its metrics count so far; -1 without metrics."""
        status, text = await self._ask(endpoint, "GET", "/metrics", b"", 5.0)
        found = _PROGRESS.findall(text) if status == 200 else []
        try:
            return sum(map(float, found)) if found else -1.0
        except ValueError:
            return -1.0

    async def _serves(self, endpoint: Endpoint, model: str) -> bool:
        """Whether `model` is what `endpoint` serves: then its 404 is about the request's path."""
        status, text = await self._ask(endpoint, "GET", "/v1/models", b"", 2.0)
        if status != 200:
            return False
        try:
            return any(entry["id"] == model for entry in orjson.loads(text)["data"])
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return False

    async def _ask(
        self, endpoint: Endpoint, method: str, path: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes]:
        """Status and body of a small question; status 0 without an answer."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {endpoint.address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        ).encode() + self._key
        head += b"\r\n"
        answer: EngineResponse | None = None
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._pool.send(endpoint.address, head, body, new_connection=True)
                return answer.status, await answer.read()
        except (TransportError, NoFileDescriptors, TimeoutError):
            if answer is not None:
                answer.close()
            return 0, b""

    async def _tidy(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._pool.close_idle()


def failure_of(error: TransportError) -> EngineError:
    """What a broken exchange says about the engine."""
    return EngineLost(str(error)) if error.sent else EngineUnreached(str(error))
