"""HTTP paths and process life of a simulated engine: start-up, serving, shutdown.

As with vLLM 0.32, connections are refused until the engine is ready. SIGTERM with a shutdown
time-out of 0 ends requests in flight with the finish reason "abort". With a time-out of N, requests
in flight may finish within N domain seconds, while new requests get 500. Requests that remain after
that hang until their clients leave. A request that crashes the core ends the engine. The exit code
is 0 in all these cases. SIGUSR1 wedges the engine (healthy, but without progress, as with a stopped
core); SIGUSR2 resumes it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from executors.engines.simulated import sleep_api
from executors.engines.simulated.answer_stream import Answer
from executors.engines.simulated.completions_api import (
    FatalRequest,
    RemoteKv,
    check_model,
    job_of,
    parse_object,
    prompt_tokens,
)
from executors.engines.simulated.message_apis import (
    MessagesAnswer,
    ResponsesAnswer,
    chat_of_messages,
    chat_of_responses,
    error_of_messages,
)
from executors.engines.simulated.request_parameters import ApiError, malformed
from executors.engines.simulated.simulated_engine import Engine, Identity
from executors.engines.simulated.small_http import Connection, Request, Responder
from topics.edge.supervision import watch_supervisor
from topics.time_base import TimeBase

_KV_PATH = "/simulated/kv/"
_FETCH_TIMEOUT_S = 5.0
_DEATH_S = 0.5  # real s from the crash of the core to the end of the process
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_COMPLETIONS, _COUNT_TOKENS = "/v1/completions", "/v1/messages/count_tokens"
_ANSWERED: Mapping[str, tuple[Callable[[dict[str, Any]], Mapping[str, Any]], type[Answer]]] = {
    _COMPLETIONS: (dict, Answer),
    "/v1/chat/completions": (dict, Answer),
    "/v1/responses": (chat_of_responses, ResponsesAnswer),
    "/v1/messages": (chat_of_messages, MessagesAnswer),
}
_COUNTED = (_COUNT_TOKENS, "/tokenize", "/detokenize")
_VERSION = orjson.dumps({"version": "simulated"})


@dataclass(frozen=True, slots=True)
class Serving:
    """Settings of the server. max_len: maximum of tokens in one request. Times in domain s.

    adapters: further names that the engine serves. dev_mode: whether pause and sleep are enabled.
    api_key: required by /v1, "" for no key. has_tools: whether tools are accepted, as with
    --tool-call-parser. caches_prefixes: whether the engine has a prefix cache.
    """

    identity: Identity
    max_len: int
    time_base: TimeBase
    shutdown_timeout_s: float
    dev_mode: bool = False
    api_key: str = ""
    has_tools: bool = False
    caches_prefixes: bool = False
    adapters: tuple[str, ...] = ()


class Server:
    """Routes requests to the engine; `run` serves until shutdown."""

    def __init__(self, engine: Engine, serving: Serving) -> None:
        self._engine = engine
        self._serving = serving
        self._connections: set[Connection] = set()
        self._ending = False
        self._dead = asyncio.Event()
        self._answers = 0
        self._dev = sleep_api.DevMode(engine) if serving.dev_mode else None

    async def run(self, stop: asyncio.Event, gone: asyncio.Event) -> None:
        """Listen until `stop` (orderly shutdown), `gone` (immediate shutdown) or a fatal request.
        Raises OSError if the port is in use."""
        loop = asyncio.get_running_loop()
        identity = self._serving.identity
        loop.add_signal_handler(signal.SIGUSR1, self._engine.pause)
        loop.add_signal_handler(signal.SIGUSR2, self._engine.resume)
        listener = await loop.create_server(
            lambda: Connection(self._handle, self._connections),
            identity.host,
            identity.port,
            backlog=512,
        )
        try:
            await first_of(stop, gone, self._dead)
            if self._dead.is_set():
                listener.close()
                self._engine.break_off("EngineCore encountered an issue.")
                await asyncio.sleep(_DEATH_S)
            elif self._serving.shutdown_timeout_s > 0 and not gone.is_set():
                self._ending = True
                timeout_s = self._serving.time_base.real_s(self._serving.shutdown_timeout_s)
                try:
                    await asyncio.wait_for(first_of(self._engine.idle, gone), timeout_s)
                except TimeoutError:  # the core stops, and the remaining requests hang
                    listener.close()
                    self._engine.pause()
                    await first_of(self._engine.idle, gone)
        finally:
            listener.close()
            self._engine.cut()
            for connection in list(self._connections):
                connection.close()
            await asyncio.sleep(0)  # let the loop send the bytes above

    def _handle(self, request: Request, responder: Responder) -> None:
        try:
            self._route(request, responder)
        except ApiError as error:
            responder.respond(error.status, error.body())

    def _route(self, request: Request, responder: Responder) -> None:
        path, method = request.path, request.method
        if path in _ANSWERED or path in _COUNTED or path.startswith(_KV_PATH):
            wanted = "POST"
        elif path in ("/health", "/metrics", "/version", "/v1/models"):
            wanted = "GET"
        elif self._dev is not None and path in sleep_api.METHODS:
            wanted = sleep_api.METHODS[path]
        else:
            responder.respond(404, b'{"detail":"Not Found"}')
            return
        if path.startswith("/v1") and not self._authorized(request):
            responder.respond(401, b'{"error":"Unauthorized"}')
        elif method != wanted:
            responder.respond(405, b'{"detail":"Method Not Allowed"}')
        elif path in _ANSWERED:
            self._generate(request, responder)
        elif path in _COUNTED:
            responder.respond(200, self._tokenize(path, request.body))
        elif path.startswith(_KV_PATH):
            self._give_kv(request, responder, path.removeprefix(_KV_PATH))
        elif path == "/health":
            responder.respond(200, b"")
        elif path == "/metrics":
            responder.respond(200, self._engine.metrics_text(), _TEXT)
        elif path == "/version":
            responder.respond(200, _VERSION)
        elif path == "/v1/models":
            responder.respond(200, self._models())
        elif self._dev is not None:
            self._dev.handle(request, responder)

    def _authorized(self, request: Request) -> bool:
        """Whether the request is authorized. The API key protects only /v1, as vLLM's --api-key
        does."""
        key = self._serving.api_key
        return not key or request.headers.get("authorization", "") == f"Bearer {key}"

    def _generate(self, request: Request, responder: Responder) -> None:
        identity = self._serving.identity
        if self._ending:
            raise ApiError(500, "the engine is shutting down")
        read, form = _ANSWERED[request.path]
        chat = request.path != _COMPLETIONS
        try:
            raw = read(parse_object(request.body))
            about = self._serving
            model = self._asked_model(raw)
            job = job_of(raw, chat, model, about.max_len, about.has_tools, about.caches_prefixes)
        except FatalRequest:
            self._dead.set()
            raise ApiError(500, "EngineCore encountered an issue.") from None
        except ApiError as error:
            if form is not MessagesAnswer:
                raise
            responder.respond(error.status, error_of_messages(error))
            return
        self._answers += 1
        kind = form.prefix or ("chatcmpl" if chat else "cmpl")
        name = f"{kind}-{identity.engine_id}-{self._answers}"
        created = (self._serving.time_base.origin_ms + int(self._engine.now_ms())) // 1000
        self._engine.submit(job, form(job, responder, model, name, created))

    def _asked_model(self, raw: Mapping[str, Any]) -> str:
        """The adapter that `raw` names, if this engine serves it; otherwise the model."""
        asked = raw.get("model")
        found = isinstance(asked, str) and asked in self._serving.adapters
        return str(asked) if found else self._serving.identity.model

    def _tokenize(self, path: str, body: bytes) -> bytes:
        """Count tokens, which are words, or turn tokens into words."""
        raw = parse_object(body)
        check_model(raw, self._asked_model(raw))
        if path == "/detokenize":
            tokens = raw.get("tokens")
            if not isinstance(tokens, list) or not all(type(one) is int for one in tokens):
                raise malformed("tokens", "Input should be a valid list of integers")
            return orjson.dumps({"prompt": " a" * len(tokens)})
        if path == _COUNT_TOKENS:
            return orjson.dumps({"input_tokens": prompt_tokens(chat_of_messages(raw))})
        count = prompt_tokens(raw)
        answer = {"count": count, "max_model_len": self._serving.max_len}
        return orjson.dumps({**answer, "tokens": [*range(count)], "token_strs": None})

    def _give_kv(self, request: Request, responder: Responder, name: str) -> None:
        engine_id, _, number = name.rpartition("-")
        try:
            transfer_ms = float(orjson.loads(request.body)["transfer_ms"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
            raise ApiError(400, "transfer_ms must be a number") from None
        if engine_id != self._serving.identity.engine_id or not number.isdigit():
            raise ApiError(404, "this engine never held that KV")
        self._engine.give_kv(int(number), min(max(transfer_ms, 0.0), 1e7))
        responder.respond(200, b"{}")

    def _models(self) -> bytes:
        model, adapters = self._serving.identity.model, self._serving.adapters
        card = {"object": "model", "owned_by": "shoal", "max_model_len": self._serving.max_len}
        cards = [{"id": model, "root": model, "parent": None, **card}]
        cards += [{"id": name, "root": name, "parent": model, **card} for name in adapters]
        return orjson.dumps({"object": "list", "data": cards})


async def fetch_kv(remote: RemoteKv, transfer_ms: float) -> bool:
    """Fetch KV from the engine at `remote`. False if the KV is gone or if another engine
    answers."""
    body = orjson.dumps({"transfer_ms": transfer_ms})
    head = (
        f"POST {_KV_PATH}{remote.request} HTTP/1.1\r\nHost: {remote.host}\r\n"
        f"Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    try:
        async with asyncio.timeout(_FETCH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(remote.host, remote.port)
            try:
                writer.write(head.encode() + body)
                status = await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
    return status.split(b" ")[1:2] == [b"200"]


async def first_of(*events: asyncio.Event) -> None:
    """Wait until one of `events` is set."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def watch_end(loop: asyncio.AbstractEventLoop) -> tuple[asyncio.Event, asyncio.Event]:
    """(stop, gone): set by SIGTERM or SIGINT, and by the exit of the supervisor."""
    stop, gone = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    watch_supervisor(loop, gone.set)
    return stop, gone
