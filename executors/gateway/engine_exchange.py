"""Send requests to engines and classify their failures.

After a failure, a request may go to another engine only if it cannot have harmed the first engine.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from types import TracebackType

import orjson

from executors.gateway.gateway_settings import GatewaySettings
from executors.gateway.openai_format import error_body
from executors.gateway.wire.body_blocks import Blocks
from executors.gateway.wire.engine_pool import (
    EnginePool,
    EngineResponse,
    NoFileDescriptors,
    TransportError,
)
from topics.records import Endpoint

# vLLM closes idle connections after 5 s; a shorter time avoids requests on a connection that is
# closing.
_KEEP_ALIVE_REAL_S = 3.0
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_PROGRESS = re.compile(
    rb"^vllm:(?:generation_tokens|prompt_tokens|request_success)_total\S* (\S+)", re.M
)


_NO_SUCH_PATH = (404, 405, 501)


class EngineError(Exception):
    """An instance did not answer the request. may_resend: whether another instance may be tried;
    False if the request may have crashed the engine, because it must not crash a second one.
    ejects: whether the instance gets no requests until a probe succeeds. status: the HTTP status
    for the client.
    """

    may_resend = False
    ejects = False
    status = 502


class EngineUnreachable(EngineError):
    """The engine never received the request."""

    may_resend = True
    ejects = True


class EngineNotServing(EngineError):
    """The engine does not serve the model (503, or 404 because the engine now serves another
    model)."""

    may_resend = True
    ejects = True


class AdapterNotLoaded(EngineError):
    """The engine serves the model, but not the LoRA adapter: it started before the adapter was
    declared."""

    may_resend = True
    status = 503


class EngineConnectionLost(EngineError):
    """The connection broke after the engine got the request, which may have crashed it."""

    ejects = True


class EngineTimeout(EngineError):
    """The request did not finish in time. `HangDetector` decides from all requests whether the
    engine hangs."""

    status = 504


class EngineFault(EngineError):
    """The engine answered with an error. An engine that crashes because of a request often answers
    500 first, so its health is checked before the request goes to another instance.
    """

    may_resend = True


class GatewayOutOfSockets(EngineError):
    """This process cannot open more connections; no engine is at fault."""

    status = 503


class EngineFailedRequest(EngineFault):
    """The engine answered 500, for example because its core cannot execute the request. If two
    attempts end with 500 at instances that answer other requests, the request is at fault."""


class RequestRejected(Exception):
    """The engine rejected the request as invalid (4xx), or its model does not support the path
    (501); every instance would reject it."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body


class EngineClient:
    """HTTP client for all engines, with one connection pool without a size limit."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._pool = EnginePool(settings.connect_real_s, _KEEP_ALIVE_REAL_S, _MAX_RESPONSE_BYTES)
        key = settings.engine_key
        self._authorization = f"Authorization: Bearer {key}\r\n".encode() if key else b""
        self._cleanup_task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EngineClient:
        self._cleanup_task = asyncio.create_task(self._close_idle())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._cleanup_task is not None:
            self._cleanup_task.cancel()
        self._pool.close()

    async def post(
        self,
        endpoint: Endpoint,
        model: str,
        path: str,
        body: Blocks,
        headers: bytes,
        adapter: str = "",
    ) -> EngineResponse:
        """Send a request to `endpoint` and return its response if the status is 200. Raises
        EngineError or RequestRejected otherwise. headers: complete header lines. adapter: the LoRA
        adapter that the body names, "" = none. The caller closes the response.
        """
        head = b"POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n%s" % (
            path.encode(),
            endpoint.address.encode(),
            headers + self._authorization + b"Content-Length: %d\r\n\r\n" % sum(map(len, body)),
        )
        try:
            try:
                answer = await self._pool.send(endpoint.address, head, *body)
            except TransportError as error:
                if not error.stale:
                    raise
                # Either the engine closed an idle connection, or this request crashed the engine.
                # Try the same engine once more, but no other instance if that fails.
                try:
                    answer = await self._pool.send(
                        endpoint.address, head, *body, new_connection=True
                    )
                except TransportError as again:
                    raise EngineConnectionLost(str(again)) from again
            if answer.status == 200:
                return answer
            text = await answer.read()
        except TransportError as error:
            raise engine_error_of(error) from error
        except NoFileDescriptors as error:
            raise GatewayOutOfSockets(str(error)) from error
        status = answer.status
        reason = f"status {status}: {text[:200].decode(errors='replace')}"
        if status == 503:
            raise EngineNotServing(reason)
        if status == 404:
            names = await self._served_names(endpoint)
            if model not in names:
                raise EngineNotServing(reason)
            if adapter and adapter not in names:
                raise AdapterNotLoaded(f"{adapter} is not loaded")
        if status == 500:
            raise EngineFailedRequest(reason)
        if status in _NO_SUCH_PATH and not _is_error_object(text):
            missing = f"the engine of {model} does not serve {path}"
            raise RequestRejected(404, error_body(missing, "not_found_error", 404, path=path))
        if status != 501 and (status > 500 or status < 400):
            raise EngineFault(reason)
        raise RequestRejected(status, text)

    async def is_alive(
        self, endpoint: Endpoint, model: str, generate: bool, limit_s: float = 5.0
    ) -> bool:
        """Whether `endpoint` is healthy. generate: also whether the engine can generate one token,
        because a hanging engine still passes its health check."""
        status, _ = await self._request(endpoint, "GET", "/health", b"", limit_s)
        if status != 200 or not generate:
            return status == 200
        body = orjson.dumps({"model": model, "prompt": "a", "max_tokens": 1})
        status, _ = await self._request(endpoint, "POST", "/v1/completions", body, limit_s)
        # 4xx counts as alive, because an embedding model has no completions
        return 200 <= status < 500

    async def progress_count(self, endpoint: Endpoint) -> float:
        """Sum of tokens and requests in the engine's metrics since its start; -1 without
        metrics."""
        status, text = await self._request(endpoint, "GET", "/metrics", b"", 5.0)
        counts = _PROGRESS.findall(text) if status == 200 else []
        try:
            return sum(map(float, counts)) if counts else -1.0
        except ValueError:
            return -1.0

    async def _served_names(self, endpoint: Endpoint) -> Collection[str]:
        """The models and adapters that `endpoint` serves; empty if it does not answer. If they
        include the model of a request, a 404 means that its path is wrong."""
        status, text = await self._request(endpoint, "GET", "/v1/models", b"", 2.0)
        if status != 200:
            return ()
        try:
            return {str(entry["id"]) for entry in orjson.loads(text)["data"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return ()

    async def _request(
        self, endpoint: Endpoint, method: str, path: str, body: bytes, limit_s: float
    ) -> tuple[int, bytes]:
        """Status and body of a small request; status 0 if there is no response."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: {endpoint.address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        ).encode() + self._authorization
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

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._pool.close_idle()


def _is_error_object(text: bytes) -> bool:
    """Whether `text` is an error in OpenAI's or Anthropic's format. (The web framework has another
    format.)"""
    try:
        return isinstance(orjson.loads(text)["error"], dict)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return False


def engine_error_of(error: TransportError) -> EngineError:
    """The EngineError that describes the `error` of a failed exchange."""
    return EngineConnectionLost(str(error)) if error.sent else EngineUnreachable(str(error))
