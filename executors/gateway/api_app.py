"""The HTTP face of the gateway: a closed list of paths, in OpenAI's form.

Owns reading requests, who may ask for what, and the small answers of its own. What becomes of a
request is the relay's business; what is counted is the meter's.
"""

from __future__ import annotations

import asyncio
import ipaddress
import itertools
import re
import time
from collections.abc import Awaitable, Callable

import orjson

from executors.gateway.allowed_fields import BadRequest
from executors.gateway.api_keys import Access, Denied
from executors.gateway.body_parsing import Parser, ParserBusy
from executors.gateway.gateway_metrics import Metrics
from executors.gateway.gateway_settings import Clock, Settings
from executors.gateway.inflight_request import Request
from executors.gateway.model_meter import Ending, Meter, Outcome
from executors.gateway.model_selection import Choosing
from executors.gateway.openai_format import CHAT, COMPLETIONS, EMBEDDINGS, Call, error_body
from executors.gateway.pending_routes import Arrival, arrival, counted
from executors.gateway.proxy import Relay
from executors.gateway.route_table import RouteTable
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_exchange import Exchange
from topics.http_origin import HostRule, is_cross_site
from topics.scoring import EVERY, FELL_BACK

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_MODELS = "/v1/models"
_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}\Z")
_TRACE_STATE = re.compile(rb"[\x20-\x7e]{1,512}\Z")
_RETRY_S = 1  # after a shortage that lasts for milliseconds

Handler = Callable[[Exchange], Awaitable[None]]


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
        access: Access,
        budget: BodyMemory,
        hosts: HostRule,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._relay = relay
        self._metrics = metrics
        self._meters = meters
        self._access = access
        self._budget = budget
        self._hosts = hosts
        self._ids = (f"{settings.gateway_id}-{boot[:8]}-{n}" for n in itertools.count(1))
        self._ids_in_use: set[str] = set()
        self._unknown_waiting = 0
        self.parser = Parser(settings.media_domains)
        self.choosing = Choosing(table.routers, metrics, settings.connect_real_s)
        self.make_room: Callable[[], bool] = lambda: False  # of the server, which needs us first
        self.draining = False
        self._posts: dict[str, Handler] = dict.fromkeys(
            (COMPLETIONS, CHAT, EMBEDDINGS), self.generate
        )
        self._gets: dict[str, Handler] = {
            _MODELS: self.models,
            "/health": self.health,
            "/metrics": self.expose,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; every path that is not listed here is 404."""
        path, method = exchange.path, exchange.method
        host = exchange.header(b"host")
        if not self._hosts.allows(host):
            declare = "is not one of this gateway's; --allowed-hosts declares names"
            self.refuse(exchange, 421, f"the host name {host[:200]!r} {declare}")
            return
        post, get = self._posts.get(path), self._gets.get(path)
        if get is None and path.startswith(_MODELS + "/"):
            get = self.model
        if method == b"POST" and post is not None:
            # With API keys a page of another site cannot send what is asked for.
            origin, site = exchange.header(b"origin"), exchange.header(b"sec-fetch-site")
            if not self._access.keyed and is_cross_site(host, origin, site):
                self.refuse(exchange, 403, "requests of other sites' pages need an API key")
                return
            await post(exchange)
        elif method in (b"GET", b"HEAD") and get is not None:
            await get(exchange)
        elif post is not None or get is not None:
            exchange.add_header(b"Allow", b"POST" if post is not None else b"GET, HEAD")
            self.refuse(exchange, 405, f"{path[:200]}: method not allowed")
        else:
            self.refuse(exchange, 404, f"{path[:200]}: not found")

    def refuse(
        self, exchange: Exchange, status: int, message: str, field: str | None = None
    ) -> None:
        """An error in the form that OpenAI clients read."""
        kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
        if status in (429, 503):
            exchange.add_header(b"Retry-After", b"%d" % _RETRY_S)
        if status == 401:
            exchange.add_header(b"WWW-Authenticate", b"Bearer")
        if status < 500:
            self._metrics.bad.inc()
        exchange.answer(status, error_body(message, kind, status, field))

    async def generate(self, exchange: Exchange) -> None:
        """Completions, chat completions and embeddings."""
        arrived_ns = self._clock.mono_ns()
        raw, exchange.body = exchange.body, ()
        size = sum(map(len, raw))
        fits = self._budget.reserve(size)
        try:
            if not fits and not self.make_room():
                self._metrics.busy.inc()
                self.refuse(exchange, 429, "too many large requests at once")
                return
            try:
                bearer = exchange.headers.get(b"authorization", b"")
                key = self._access.admit(bearer, time.monotonic())
                names, scored = self._table.names, self._table.scored
                call = await self.parser.parse(exchange.path, raw, names, scored)
                del raw
                self._access.allow(key, call.model)
            except BadRequest as error:
                self.refuse(exchange, 400, str(error), error.field)
                return
            except Denied as error:
                self._deny(exchange, error)
                return
            except ParserBusy:
                self._metrics.busy.inc()
                self.refuse(exchange, 429, "too many large requests at once")
                return
            spent_ns = self._clock.mono_ns() - arrived_ns
            if call.model in self._table.routers:
                await self._choose(exchange, call, arrived_ns, spent_ns)
            else:
                await self._unrouted(exchange, call, arrived_ns, spent_ns)
        finally:
            self._budget.release(size)

    async def _unrouted(
        self, exchange: Exchange, call: Call, arrived_ns: int, spent_ns: int
    ) -> None:
        """Serve if routes come in time; a declared model's request counts from now on."""
        early = arrival(call, self._settings.declared, self._meters)
        try:
            if await self._known(exchange, call):
                await self._choose(exchange, call, arrived_ns, spent_ns, early)
        except asyncio.CancelledError:
            if early is not None and exchange.client_gone:
                early.ending = Ending.WITHDRAWN
            raise
        finally:
            if early is not None:
                early.close()

    def _deny(self, exchange: Exchange, denied: Denied) -> None:
        self._metrics.denied.inc()
        if denied.retry_s:
            exchange.add_header(b"Retry-After", b"%d" % denied.retry_s)
            exchange.answer(429, error_body(str(denied), "rate_limit_exceeded", 429))
        else:
            self.refuse(exchange, denied.status, str(denied))

    async def _known(self, exchange: Exchange, call: Call) -> bool:
        """Whether the model of `call` has routes, or gets them in time; if not, that is said."""
        known: bool | None = None
        if call.model in self._settings.advised:
            self._metrics.unknown.inc()
            self.refuse(
                exchange,
                503,
                f"nothing serves {call.model}: its mode is not act, so no instance is started",
            )
            return False
        if self._unknown_waiting < self._settings.max_unknown:
            until = time.monotonic() + self._clock.real_s(self._settings.hold_s)
            self._unknown_waiting += 1
            try:
                known = await self._table.known(call.model, until)
            finally:
                self._unknown_waiting -= 1
        call.model = self._table.names.get(call.model, call.model)
        if known and call.model in self._table.routers:
            return True
        self._metrics.unknown.inc()
        if known is None:
            self.refuse(exchange, 503, "no routes are known yet")
        else:
            self.refuse(exchange, 404, f"the model {call.model[:200]!r} does not exist", "model")
        return False

    async def _choose(
        self,
        exchange: Exchange,
        call: Call,
        arrived_ns: int,
        spent_ns: int,
        early: Arrival | None = None,
    ) -> None:
        """Serve; a request for a name that stands for several models by one of these."""
        routes = self._table.routers[call.model].routes
        if routes is None or routes.split is None:
            await self._serve(exchange, call, arrived_ns, spent_ns, None, early)
            return
        meter = self._meters.setdefault(call.model, Meter())
        model, number, fell_back = await self.choosing.choose(call, exchange.headers, routes.split)
        call.model = model
        if model in self._table.routers or await self._known(exchange, call):
            through = (meter, number, fell_back)
            await self._serve(exchange, call, arrived_ns, spent_ns, through, early)

    async def _serve(
        self,
        exchange: Exchange,
        call: Call,
        arrived_ns: int,
        spent_ns: int,
        through: tuple[Meter, int, bool] | None,
        early: Arrival | None,
    ) -> None:
        """Serve, and count the end whatever it is. through: of the name that it was asked by, where
        that stands for several models, the class of its score, and whether it fell back. early:
        where it counted as having arrived before."""
        router, media = self._table.routers[call.model], frozenset(call.media)
        if not router.accepts_media(media):
            if early is not None:
                early.ending = Ending.WITHDRAWN
            what = ", ".join(sorted(media)) or "text alone"
            self.refuse(exchange, 400, f"{call.model} takes no requests with {what}", "messages")
            return
        meter = self._meters.get(call.model)
        if meter is None:
            meter = self._meters[call.model] = Meter()
        name, shown = self._name(exchange)
        exchange.add_header(b"X-Request-Id", shown)
        lengths = counted(meter, call, early)
        if through is not None:
            counted(through[0], call, early)
            through[0].count_class(through[1])
        kind = router.kind_of(*lengths, media)
        trace = _trace(exchange)
        request = Request(call, exchange, arrived_ns, name, spent_ns, trace, lengths[1], kind)
        request.on_sent = meter.count_sent
        outcome = Outcome(Ending.FAILED)
        try:
            outcome = await self._relay.serve(request)
        except asyncio.CancelledError:
            self._metrics.aborts.labels(call.model).inc()
            if exchange.client_gone:
                waited_ms = self._clock.elapsed_ms(arrived_ns, self._clock.mono_ns())
                first_ms = 0.0 if request.started else None
                outcome = Outcome(Ending.WITHDRAWN, waited_ms, first_ms)
            raise
        finally:
            self._ids_in_use.discard(name)
            left = self._table.routers.get(call.model)
            routes = left.routes if left is not None else None
            limits = (routes.ttft_limit_ms, routes.tpot_limit_ms) if routes else (0.0, 0.0)
            meter.ended(outcome, call.tokens_guess, *limits)
            if through is not None:
                through[0].ended(outcome, call.tokens_guess, *limits)
                through[0].count_sent(EVERY, call.model)
                if through[2]:
                    through[0].count_sent(FELL_BACK, call.model)
            self._metrics.ended(call.model, outcome.ending)
            request.pause()
            self._metrics.overhead(request.own_ns / 1e6)

    def _name(self, exchange: Exchange) -> tuple[str, bytes]:
        """The request's id at engines, where it must be unique, and what its client sees."""
        given = exchange.headers.get(b"x-request-id", b"")
        shown = given if _ID.match(given) else next(self._ids).encode()
        name = shown.decode()
        if name in self._ids_in_use:
            name = f"{name}-{next(self._ids)}"
        self._ids_in_use.add(name)
        return name, shown

    async def models(self, exchange: Exchange) -> None:
        """The models that have routes, and that this key may use."""
        try:
            key = self._access.admit(exchange.headers.get(b"authorization", b""), None)
        except Denied as error:
            self._deny(exchange, error)
            return
        listed = [
            self._model(model)
            for model in sorted(self._table.routers)
            if self._access.may_use(key, model)
        ]
        exchange.answer(200, orjson.dumps({"object": "list", "data": listed}))

    async def model(self, exchange: Exchange) -> None:
        """One model, by its name or another name of it."""
        asked = exchange.path[len(_MODELS) + 1 :].replace("%2F", "/").replace("%2f", "/")
        model = self._table.names.get(asked, asked)
        try:
            key = self._access.admit(exchange.headers.get(b"authorization", b""), None)
        except Denied as error:
            self._deny(exchange, error)
            return
        if model in self._table.routers and self._access.may_use(key, model):
            exchange.answer(200, orjson.dumps(self._model(model)))
        else:
            self.refuse(exchange, 404, f"the model {asked[:200]!r} does not exist", "model")

    def _model(self, model: str) -> dict[str, object]:
        routes = self._table.routers[model].routes
        aliases = list(routes.aliases) if routes else []
        root = aliases[0] if aliases else model
        return {"id": model, "object": "model", "created": 0, "owned_by": "shoal", "root": root}

    async def health(self, exchange: Exchange) -> None:
        """Whether this process answers and stays; it says nothing about engines."""
        status = "draining" if self.draining else "ok"
        body = orjson.dumps({"status": status, "models": len(self._table.routers)})
        exchange.answer(503 if self.draining else 200, body)

    async def expose(self, exchange: Exchange) -> None:
        """Metrics in Prometheus' text form; with API keys, for this host and for holders of one."""
        if self._access.keyed and not _is_local(exchange.peer):
            try:
                self._access.admit(exchange.headers.get(b"authorization", b""), None)
            except Denied as error:
                self._deny(exchange, error)
                return
        for model, meter in self._meters.items():
            self._metrics.in_flight.labels(model).set(meter.in_flight)
            self._metrics.waiting.labels(model).set(self._relay.admission.waiting(model))
        for model, router in self._table.routers.items():
            self._metrics.ejected.labels(model).set(len(router.ejected()))
        self._metrics.body_bytes.set(self._budget.used_bytes)
        exchange.answer(200, self._metrics.exposition(), _TEXT)


_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "overloaded",
    503: "no_instance",
}


def _trace(exchange: Exchange) -> bytes:
    """The trace headers of a client, as lines for engines."""
    parent = exchange.headers.get(b"traceparent", b"")
    if not _TRACE.match(parent):
        return b""
    state = exchange.headers.get(b"tracestate", b"")
    lines = b"traceparent: %s\r\n" % parent
    return lines + b"tracestate: %s\r\n" % state if _TRACE_STATE.match(state) else lines


def _is_local(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False
