"""Fake engines that fail in chosen ways, with a gateway in front of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web

from executors.gateway.gateway_server import Gateway
from tests.hang_limit import HANG_S
from topics.records import Endpoint, RouteGroup, Routes, Telemetry


class FakeEngine:
    """An engine that answers with `tokens` tokens. mode: how it answers the next requests:

    ok; status:N; lost-kv (500 for requests that bring KV); lost-kv-event (an error event instead);
    cut (connection reset before a byte); cut-after:N (after N tokens);
    cut-kept (connection reset on a reused connection, an answer on a new one);
    error-after:N (error event and [DONE]); refuse-after:N (the same, with code 400);
    cut-at-end (connection reset after [DONE]);
    hang-at-end (the connection stays open after [DONE]); hang (no answer); gate (waits for `gate`).
    """

    def __init__(self, name: str, model: str = "chat", tokens: int = 5) -> None:
        self.name, self.model, self.tokens = name, model, tokens
        self.mode = "ok"
        self.only_for = ""  # The mode applies only to prompts that contain this text.
        self.adapters: tuple[str, ...] | None = None  # None: it serves every name
        self.healthy = True
        self.progresses = False
        self._tokens_made = 0
        self._peers: set[object] = set()
        self.seen: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.gate = asyncio.Event()
        self.aborted = asyncio.Event()
        self.port = 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> FakeEngine:
        app = web.Application(client_max_size=1 << 25)
        app.router.add_post("/v1/completions", self.generate)
        app.router.add_post("/v1/chat/completions", self.generate)
        app.router.add_post("/v1/embeddings", self.generate)
        app.router.add_post("/tokenize", self.generate)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.port = self._runner.addresses[0][1]
        return self

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.name, f"127.0.0.1:{self.port}")

    async def health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def models(self, request: web.Request) -> web.Response:
        if self.adapters is None:
            return web.Response(status=404)  # as if it served another model
        names = (self.model, *self.adapters)
        return web.json_response({"data": [{"id": name} for name in names]})

    async def metrics(self, request: web.Request) -> web.Response:
        self._tokens_made += self.progresses
        return web.Response(text=f'vllm:generation_tokens_total{{a="b"}} {self._tokens_made}.0\n')

    async def generate(self, request: web.Request) -> web.StreamResponse:
        kept = request.transport in self._peers
        self._peers.add(request.transport)
        body = json.loads(await request.read())
        self.seen.append(body)
        self.headers.append(request.headers.copy())
        if self.adapters is not None and body["model"] not in (self.model, *self.adapters):
            error = {"message": f"The model `{body['model']}` does not exist.", "code": 404}
            return web.json_response({"error": error}, status=404)
        mode = self.mode if self.only_for in str(body.get("prompt")) else "ok"
        kind, _, number = mode.partition(":")
        if kind == "status":
            error = {"error": {"message": "as told", "type": "x", "code": int(number)}}
            return web.json_response(error, status=int(number))
        remote = (body.get("kv_transfer_params") or {}).get("do_remote_prefill")
        if remote and kind == "lost-kv":
            return web.json_response({"error": {"message": "KV load failed"}}, status=500)
        if remote and kind == "lost-kv-event":
            kind, number = "error-after", "0"
        if kind == "cut" or (kind == "cut-kept" and kept):
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        try:
            if kind == "hang":
                await asyncio.Event().wait()
            if kind == "gate":
                await self.gate.wait()
        except asyncio.CancelledError:
            self.aborted.set()
            raise
        usage = {"prompt_tokens": 7, "completion_tokens": self.tokens, "total_tokens": 12}
        if not body.get("stream"):
            answer: dict[str, Any] = {
                "model": self.model,
                "choices": [{"text": "x"}],
                "usage": usage,
            }
            if (body.get("kv_transfer_params") or {}).get("do_remote_decode"):
                answer["kv_transfer_params"] = {"do_remote_prefill": True, "remote_host": self.name}
            return web.json_response(answer)
        return await self._stream(request, body, kind, number, usage)

    async def _stream(
        self, request: web.Request, body: dict[str, Any], kind: str, number: str, usage: Any
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)

        async def event(value: Any) -> None:
            await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        for index in range(self.tokens):
            if kind.endswith("-after") and index == int(number) > 0:
                await asyncio.sleep(0.05)  # Earlier events reach the client first.
            if kind == "cut-after" and index == int(number):
                assert request.transport is not None
                request.transport.close()
                return response
            if kind in ("error-after", "refuse-after") and index == int(number):
                code = 500 if kind == "error-after" else 400
                await event({"error": {"message": "shutting down", "code": code}})
                await response.write(b"data: [DONE]\n\n")
                return response
            await event({"choices": [{"text": f"{self.name}{index}"}]})
        if (body.get("stream_options") or {}).get("include_usage"):
            await event({"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        if kind.endswith("-at-end"):
            await asyncio.sleep(0.05)  # The end reaches the gateway first.
            assert request.transport is not None
            if kind.startswith("cut"):
                request.transport.abort()
            else:
                await self.gate.wait()
        return response


class FakeLink:
    """A broker client that stores records, or refuses them while `away`."""

    def __init__(self) -> None:
        self.away = False
        self.records: list[Telemetry] = []

    async def publish(self, topic: str, key: str, record: object) -> bool:
        if self.away:
            return False
        assert topic == "telemetry"
        assert isinstance(record, Telemetry)
        assert key == record.model
        self.records.append(record)
        return True


class Bench:
    """A gateway, its engines, and a client."""

    def __init__(self, stack: AsyncExitStack, link: FakeLink) -> None:
        self.stack, self.link = stack, link
        self.gateway: Gateway
        self.http: aiohttp.ClientSession

    async def engine(self, name: str, **options: Any) -> FakeEngine:
        made = await FakeEngine(name, **options).start()
        self.stack.push_async_callback(made.stop)
        return made

    def route(
        self,
        *groups: RouteGroup,
        model: str = "chat",
        generation: int = 1,
        adapters: tuple[str, ...] = (),
    ) -> None:
        # Limits that answers keep on a loaded machine, too.
        routes = Routes(model, generation, 1, 0, 600_000.0, 60_000.0, groups, adapters=adapters)
        self.gateway.table.apply(routes)

    def body(self, **changes: Any) -> dict[str, Any]:
        made = {"model": "chat", "prompt": "a a a", "stream": True, "max_tokens": 5, **changes}
        if "messages" in changes:
            del made["prompt"]
        return made

    async def post(self, path: str = "/v1/completions", **changes: Any) -> tuple[int, str]:
        url = self.gateway.url + path
        async with self.http.post(url, json=self.body(**changes)) as answer:
            return answer.status, await answer.text()

    async def metric(self, name: str) -> float:
        """The sum of all series of a metric."""
        async with self.http.get(self.gateway.url + "/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith((f"shoal:gateway_{name} ", f"shoal:gateway_{name}{{"))
        )


MakeBench = Callable[..., Awaitable[Bench]]


async def until(condition: Callable[[], bool], real_s: float = HANG_S) -> None:
    """Wait until `condition` holds; TimeoutError after `real_s`."""
    async with asyncio.timeout(real_s):
        while not condition():
            await asyncio.sleep(0.005)


def total(records: list[Telemetry], field: str) -> int:
    """The sum of one count over telemetry records."""
    return sum(getattr(record, field) for record in records)
