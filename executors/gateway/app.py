"""The HTTP face of the gateway: a closed list of paths, in OpenAI's form.

Owns reading requests and writing answers through aiohttp. What becomes of a request is the
relay's business; what is counted is the meter's.
"""

from __future__ import annotations

import asyncio
import itertools
import time

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from executors.gateway.meter import Ending, Meter, Outcome
from executors.gateway.metrics import Metrics
from executors.gateway.openai import (
    CHAT,
    COMPLETIONS,
    BadRequest,
    Call,
    error_body,
    parse_call,
)
from executors.gateway.relay import Relay
from executors.gateway.request import Request
from executors.gateway.settings import Clock, Settings
from executors.gateway.table import RouteTable

_JSON = "application/json"
_TEXT = "text/plain; version=0.0.4; charset=utf-8"
_SSE = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class ClientLost(Exception):
    """The client went away; nobody is there to be answered."""


class HttpClient:
    """The client of one request, as the relay sees it."""

    def __init__(self, http: web.BaseRequest) -> None:
        self._http = http
        self.response: web.StreamResponse | None = None

    @property
    def gone(self) -> bool:
        """Whether the client has left (and not we who end)."""
        transport = self._http.transport
        return transport is None or transport.is_closing()

    async def answer(self, status: int, body: bytes) -> None:
        """A whole answer; aiohttp sends it when the handler returns."""
        self.response = web.Response(status=status, body=body, content_type=_JSON)

    async def write(self, data: bytes, last: bool) -> None:
        """A part of an event stream."""
        try:
            if self.response is None:
                self.response = web.StreamResponse(status=200, headers=_SSE)
                await self.response.prepare(self._http)
            if last:
                await self.response.write_eof(data)
            else:
                await self.response.write(data)
        except ConnectionError as error:
            raise ClientLost from error


class Face:
    """Handlers of all paths."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        table: RouteTable,
        relay: Relay,
        metrics: Metrics,
        meters: dict[str, Meter],
        boot: str,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._relay = relay
        self._metrics = metrics
        self._meters = meters
        self._ids = (f"{settings.gateway_id}-{boot[:8]}-{n}" for n in itertools.count(1))

    def application(self) -> web.Application:
        """The application; every path that is not listed here is 404."""
        app = web.Application(
            client_max_size=self._settings.max_body_bytes, middlewares=[_openai_errors]
        )
        app.router.add_post(COMPLETIONS, self.generate)
        app.router.add_post(CHAT, self.generate)
        app.router.add_get("/v1/models", self.models)
        app.router.add_get("/health", self.health)
        app.router.add_get("/metrics", self.metrics)
        return app

    async def generate(self, http: web.Request) -> web.StreamResponse:
        """Completions and chat completions."""
        arrived_ns = self._clock.mono_ns()
        if http.content_length is not None and http.content_length > self._settings.max_body_bytes:
            raise web.HTTPRequestEntityTooLarge(
                max_size=self._settings.max_body_bytes, actual_size=http.content_length
            )
        raw = await http.read()
        read_ns = self._clock.mono_ns()
        try:
            call = parse_call(http.path, raw)
        except BadRequest as error:
            self._metrics.bad.inc()
            return _error(400, str(error), "invalid_request_error")
        parsed_ns = self._clock.mono_ns()
        unknown = await self._unknown(call)
        if unknown is not None:
            return unknown
        client = HttpClient(http)
        request = Request(call, client, arrived_ns, next(self._ids), parsed_ns - read_ns)
        try:
            await self._counted(request, client)
        except ClientLost:
            client.response = client.response or web.Response(status=499)
        assert client.response is not None  # noqa: S101 - the relay always answers
        return client.response

    async def _unknown(self, call: Call) -> web.Response | None:
        if call.model in self._table.routers:
            return None
        until = time.monotonic() + self._clock.real_s(self._settings.hold_s)
        known = await self._table.known(call.model, until)
        if known:
            return None
        self._metrics.unknown.inc()
        if known is None:
            return _error(503, "no routes are known yet", "no_instance")
        return _error(404, f"the model {call.model[:200]!r} does not exist", "not_found_error")

    async def _counted(self, request: Request, client: HttpClient) -> None:
        """Serve, and count the end whatever it is."""
        call = request.call
        meter = self._meters.get(call.model)
        if meter is None:
            meter = self._meters[call.model] = Meter()
        meter.arrived(call.tokens_guess)
        outcome = Outcome(Ending.FAILED)
        try:
            outcome = await self._relay.serve(request)
        except (ClientLost, asyncio.CancelledError):
            self._metrics.aborts.labels(call.model).inc()
            if client.gone:
                waited_ms = self._clock.elapsed_ms(request.arrived_ns, self._clock.mono_ns())
                first_ms = 0.0 if request.started else None
                outcome = Outcome(Ending.WITHDRAWN, waited_ms, first_ms)
            raise
        finally:
            routes = self._table.routers[call.model].routes
            limits = (routes.ttft_limit_ms, routes.tpot_limit_ms) if routes else (0.0, 0.0)
            meter.ended(outcome, call.tokens_guess, *limits)
            self._metrics.requests.labels(call.model, str(outcome.ending)).inc()
            request.pause()
            self._metrics.overhead(request.own_ns / 1e6)

    async def models(self, http: web.Request) -> web.Response:
        """The models that have routes."""
        listed = [
            {"id": model, "object": "model", "created": 0, "owned_by": "shoal"}
            for model in sorted(self._table.routers)
        ]
        return _json({"object": "list", "data": listed})

    async def health(self, http: web.Request) -> web.Response:
        """Whether this process answers; it says nothing about engines."""
        return _json({"status": "ok", "models": len(self._table.routers)})

    async def metrics(self, http: web.Request) -> web.Response:
        """Prometheus' text form."""
        for model, meter in self._meters.items():
            self._metrics.in_flight.labels(model).set(meter.in_flight)
            self._metrics.waiting.labels(model).set(self._relay.admission.waiting(model))
        for model, router in self._table.routers.items():
            self._metrics.ejected.labels(model).set(len(router.ejected()))
        return web.Response(body=self._metrics.exposition(), headers={"Content-Type": _TEXT})


def _json(value: object) -> web.Response:
    return web.Response(body=orjson.dumps(value), content_type=_JSON)


def _error(status: int, message: str, kind: str) -> web.Response:
    body = error_body(message, kind, status)
    return web.Response(status=status, body=body, content_type=_JSON)


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """aiohttp's own refusals (404, 405, 413) in the form that OpenAI clients read."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        return _error(error.status, error.reason, "invalid_request_error")
