"""The gateway's HTTP endpoints, in OpenAI's format: a closed list of paths.

It reads requests, checks API keys, and answers small requests (model lists, health, metrics)
itself. `proxy` sends all other requests to engines.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import Awaitable, Callable

import orjson

from autoscaler.serving.routing_policies import WithinCombo
from executors.gateway.allowed_fields import BadRequest
from executors.gateway.api_keys import AccessControl, AccessDenied
from executors.gateway.api_paths import API_PATHS
from executors.gateway.body_parsing import BodyParser, ParserProcessEnded
from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.gateway_settings import Clock, GatewaySettings
from executors.gateway.inflight_request import InflightRequest
from executors.gateway.model_listing import ModelListing
from executors.gateway.model_meter import Ending, ModelMeter, Outcome
from executors.gateway.model_selection import ModelSelector
from executors.gateway.openai_format import ApiCall, error_body
from executors.gateway.pending_routes import PendingArrival, count_once, pending_arrival
from executors.gateway.prefix_blocks import prefix_blocks
from executors.gateway.proxy import Proxy
from executors.gateway.request_headers import bearer_of, is_local
from executors.gateway.request_spans import RequestSpans
from executors.gateway.route_table import RouteTable
from executors.gateway.wire.body_memory import BodyMemory
from executors.gateway.wire.client_exchange import Exchange
from topics.http_origin import HostRule, is_cross_site
from topics.lora_adapters import kind_of_adapter
from topics.scoring import ALL_REQUESTS, FALLBACK
from topics.spans import NO_SPANS, Spans

_TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_PLAIN = b"text/plain; charset=utf-8"
_MODELS = "/v1/models"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}\Z")
_RETRY_S = 1  # Retry-After in seconds, for shortages that last for milliseconds

Handler = Callable[[Exchange], Awaitable[None]]


class ApiApp:
    """Handlers of all paths."""

    def __init__(
        self,
        settings: GatewaySettings,
        clock: Clock,
        table: RouteTable,
        proxy: Proxy,
        metrics: GatewayMetrics,
        meters: dict[str, ModelMeter],
        boot: str,
        access: AccessControl,
        body_memory: BodyMemory,
        hosts: HostRule,
        spans: Spans = NO_SPANS,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._table = table
        self._proxy = proxy
        self._metrics = metrics
        self._meters = meters
        self._access = access
        self._body_memory = body_memory
        self._hosts = hosts
        self._request_spans = RequestSpans(spans, clock)
        self._new_ids = (f"{settings.gateway_id}-{boot[:8]}-{n}" for n in itertools.count(1))
        self._ids_in_use: set[str] = set()
        self._waiting_for_routes = 0
        self.parser = BodyParser(settings.media_domains)
        self.model_selector = ModelSelector(table.routers, metrics, settings.connect_real_s)
        self.free_body_memory: Callable[[], bool] = lambda: False  # set by the gateway
        self.draining = False
        self._listing = ModelListing(table, access)
        self._posts: dict[str, Handler] = dict.fromkeys(API_PATHS, self.generate)
        self._gets: dict[str, Handler] = {
            _MODELS: self.models,
            "/health": self.health,
            "/readyz": self.ready,
            "/livez": self.live,
            "/metrics": self.metrics,
        }

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request; 404 for any path that has no handler."""
        path, method = exchange.path, exchange.method
        host = exchange.header(b"host")
        if not self._hosts.allows(host):
            declare = "is not a name of this gateway; declare it with --allowed-hosts"
            self.refuse(exchange, 421, f"the host name {host[:200]!r} {declare}")
            return
        post, get = self._posts.get(path), self._gets.get(path)
        if get is None and path.startswith(_MODELS + "/"):
            get = self.model
        if method == b"POST" and post is not None:
            # Not needed if API keys are required, because pages of other sites have no key.
            origin, site = exchange.header(b"origin"), exchange.header(b"sec-fetch-site")
            if not self._access.requires_keys and is_cross_site(host, origin, site):
                self.refuse(exchange, 403, "requests from pages of other sites need an API key")
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
        """Send an error in OpenAI's format."""
        kind = _ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        if status in (429, 503):
            exchange.add_header(b"Retry-After", b"%d" % _RETRY_S)
        if status == 401:
            exchange.add_header(b"WWW-Authenticate", b"Bearer")
        if status < 500:
            self._metrics.bad_requests.inc()
        exchange.answer(status, error_body(message, kind, status, field, exchange.path))

    async def generate(self, exchange: Exchange) -> None:
        """Handle the requests that engines answer."""
        arrived_ns = self._clock.mono_ns()
        raw, exchange.body = exchange.body, ()
        size = sum(map(len, raw))
        fits = self._body_memory.reserve(size)
        try:
            if not fits and not self.free_body_memory():
                self._metrics.overloaded.inc()
                self.refuse(exchange, 429, "too many large requests at once")
                return
            try:
                key = self._access.authenticate(bearer_of(exchange), time.monotonic())
                names, scored = self._table.aliases, self._table.score_routed
                call = await self.parser.parse(exchange.path, raw, names, scored)
                del raw
                call.model, call.adapter = self._table.resolve(call.model)
                self._access.authorize(key, call.model, call.adapter)
            except BadRequest as error:
                self.refuse(exchange, 400, str(error), error.field)
                return
            except AccessDenied as error:
                self._refuse_denied(exchange, error)
                return
            except ParserProcessEnded:
                self._metrics.overloaded.inc()
                self.refuse(exchange, 429, "too many large requests at once")
                return
            spent_ns = self._clock.mono_ns() - arrived_ns
            if call.model in self._table.routers:
                await self._select_and_serve(exchange, call, arrived_ns, spent_ns)
            else:
                await self._serve_when_routed(exchange, call, arrived_ns, spent_ns)
        finally:
            self._body_memory.release(size)

    async def _serve_when_routed(
        self, exchange: Exchange, call: ApiCall, arrived_ns: int, spent_ns: int
    ) -> None:
        """Wait for routes of the model, then serve the request. A request for a declared model
        counts as an arrival even before its model has routes."""
        if self._settings.declared_models.get(call.model, call.model) in self._table.withdrawn:
            self._refuse_unknown(exchange, call)
            return
        pending = (
            pending_arrival(call, self._settings.declared_models, self._meters)
            if API_PATHS[call.path].is_work
            else None
        )
        try:
            if await self._wait_for_routes(exchange, call):
                await self._select_and_serve(exchange, call, arrived_ns, spent_ns, pending)
        except asyncio.CancelledError:
            if pending is not None and exchange.client_gone:
                pending.ending = Ending.WITHDRAWN
            raise
        finally:
            if pending is not None:
                pending.close()

    def _refuse_denied(self, exchange: Exchange, denied: AccessDenied) -> None:
        self._metrics.denied.inc()
        if denied.retry_s:
            exchange.add_header(b"Retry-After", b"%d" % denied.retry_s)
            body = error_body(str(denied), "rate_limit_exceeded", 429, path=exchange.path)
            exchange.answer(429, body)
        else:
            self.refuse(exchange, denied.status, str(denied))

    async def _wait_for_routes(self, exchange: Exchange, call: ApiCall) -> bool:
        """Wait for routes of the model of `call` and return whether it has routes. If not, the
        request is refused."""
        routed: bool | None = None
        settings = self._settings
        if settings.declared_models.get(call.model, call.model) in settings.recommend_only:
            self._metrics.unknown_model.inc()
            self.refuse(
                exchange,
                503,
                f"no instance serves {call.model}: its mode is not act, so none is started",
            )
            return False
        if self._waiting_for_routes < self._settings.max_unknown:
            until = time.monotonic() + self._clock.real_s(self._settings.hold_s)
            self._waiting_for_routes += 1
            try:
                routed = await self._table.wait_for_routes(call.model, until)
            finally:
                self._waiting_for_routes -= 1
        call.model, call.adapter = self._table.resolve(call.model)
        if routed and call.model in self._table.routers:
            return True
        if routed is None:
            self._metrics.unknown_model.inc()
            self.refuse(exchange, 503, "the gateway has received no routes yet")
        else:
            self._refuse_unknown(exchange, call)
        return False

    def _refuse_unknown(self, exchange: Exchange, call: ApiCall) -> None:
        self._metrics.unknown_model.inc()
        self.refuse(exchange, 404, f"the model {call.model[:200]!r} does not exist", "model")

    async def _select_and_serve(
        self,
        exchange: Exchange,
        call: ApiCall,
        arrived_ns: int,
        spent_ns: int,
        pending: PendingArrival | None = None,
    ) -> None:
        """Serve the request. If its model name stands for several models, select one of them
        first."""
        routes = self._table.routers[call.model].routes
        if routes is None or routes.split is None:
            await self._serve(exchange, call, arrived_ns, spent_ns, None, pending)
            return
        meter = self._meters.setdefault(call.model, ModelMeter())
        model, number, fell_back = await self.model_selector.select(
            call, exchange.headers, routes.split
        )
        call.model = model
        if model in self._table.routers or await self._wait_for_routes(exchange, call):
            is_work = API_PATHS[call.path].is_work
            selection = (meter, number, fell_back) if is_work else None
            await self._serve(exchange, call, arrived_ns, spent_ns, selection, pending)

    async def _serve(
        self,
        exchange: Exchange,
        call: ApiCall,
        arrived_ns: int,
        spent_ns: int,
        selection: tuple[ModelMeter, int, bool] | None,
        pending: PendingArrival | None,
    ) -> None:
        """Serve the request and count its end in any case. selection: for a name that stands for
        several models, the meter of this name, the class of the score, and whether a fallback model
        answers. pending: the arrival that was counted before the model had routes."""
        router, media = self._table.routers[call.model], frozenset(call.media)
        if not router.accepts_media(media):
            if pending is not None:
                pending.ending = Ending.WITHDRAWN
            what = ", ".join(sorted(media)) or "text alone"
            self.refuse(exchange, 400, f"{call.model} does not accept {what}", "messages")
            return
        is_work = API_PATHS[call.path].is_work
        meter = self._meters.get(call.model) if is_work else ModelMeter()
        if meter is None:
            meter = self._meters[call.model] = ModelMeter()
        name, client_id = self._request_ids(exchange)
        exchange.add_header(b"X-Request-Id", client_id)
        lengths = count_once(meter, call, pending)
        if call.adapter and is_work:
            meter.count_sent(kind_of_adapter(call.adapter), call.model)
            metrics = self._metrics
            metrics.count_adapter(metrics.adapter_requests, call.model, call.adapter)
        if selection is not None:
            count_once(selection[0], call, pending)
            selection[0].count_class(selection[1])
        kind = router.kind_of(*lengths, media)
        span, trace = self._request_spans.open(exchange, arrived_ns)
        by_prefix = router.policy.inside is WithinCombo.PREFIX
        blocks = prefix_blocks(call) if by_prefix else ()
        request = InflightRequest(
            call, exchange, arrived_ns, name, spent_ns, trace, lengths[1], kind, blocks
        )
        request.versions = router.versions
        request.on_sent, request.on_failed = meter.count_sent, meter.count_failed_attempt
        outcome = Outcome(Ending.FAILED)
        try:
            outcome = await self._proxy.serve(request)
        except asyncio.CancelledError:
            self._metrics.client_aborts.labels(call.model).inc()
            if exchange.client_gone:
                waited_ms = self._clock.elapsed_ms(arrived_ns, self._clock.mono_ns())
                first_ms = 0.0 if request.response_started else None
                outcome = Outcome(Ending.WITHDRAWN, waited_ms, first_ms)
            raise
        finally:
            self._ids_in_use.discard(name)
            current_router = self._table.routers.get(call.model)
            routes = current_router.routes if current_router is not None else None
            limits = (routes.ttft_limit_ms, routes.tpot_limit_ms) if routes else (0.0, 0.0)
            meter.record_end(outcome, call.prompt_tokens_estimate, *limits, request.version)
            if selection is not None:
                selection[0].record_end(outcome, call.prompt_tokens_estimate, *limits)
                selection[0].count_sent(ALL_REQUESTS, call.model)
                if selection[2]:
                    selection[0].count_sent(FALLBACK, call.model)
            if is_work:
                self._metrics.count_end(call.model, outcome.ending)
            request.stop_timer()
            self._metrics.observe_overhead(request.gateway_ns / 1e6)
            self._request_spans.end(span, request, outcome)

    def _request_ids(self, exchange: Exchange) -> tuple[str, bytes]:
        """(id of the request for engines, which must be unique; id that the client sees)."""
        given = exchange.headers.get(b"x-request-id", b"")
        client_id = given if _REQUEST_ID.match(given) else next(self._new_ids).encode()
        name = client_id.decode()
        if name in self._ids_in_use:
            name = f"{name}-{next(self._new_ids)}"
        self._ids_in_use.add(name)
        return name, client_id

    async def models(self, exchange: Exchange) -> None:
        """List the models that have routes and that the key may use."""
        try:
            key = self._access.authenticate(bearer_of(exchange), None)
        except AccessDenied as error:
            self._refuse_denied(exchange, error)
            return
        exchange.answer(200, self._listing.every(key))

    async def model(self, exchange: Exchange) -> None:
        """Describe one model, given by its name or an alias."""
        name = exchange.path[len(_MODELS) + 1 :].replace("%2F", "/").replace("%2f", "/")
        try:
            key = self._access.authenticate(bearer_of(exchange), None)
        except AccessDenied as error:
            self._refuse_denied(exchange, error)
            return
        entry = self._listing.one(name, key)
        if entry is not None:
            exchange.answer(200, entry)
        else:
            self.refuse(exchange, 404, f"the model {name[:200]!r} does not exist", "model")

    async def health(self, exchange: Exchange) -> None:
        """Answer 200 unless this process is draining, whatever the state of engines is."""
        status = "draining" if self.draining else "ok"
        body = orjson.dumps({"status": status, "models": len(self._table.routers)})
        exchange.answer(503 if self.draining else 200, body)

    async def ready(self, exchange: Exchange) -> None:
        """As `health`, but 503 until this gateway knows the routes."""
        if not self._table.known:
            exchange.answer(503, orjson.dumps({"status": "no routes were read yet", "models": 0}))
            return
        await self.health(exchange)

    async def live(self, exchange: Exchange) -> None:
        """Answer 200 while the event loop runs, whatever Kafka and the engines do."""
        exchange.answer(200, b"ok\n", _PLAIN)

    async def metrics(self, exchange: Exchange) -> None:
        """Metrics in Prometheus' text format. If API keys are required, only for this host and for
        holders of a key."""
        if self._access.requires_keys and not is_local(exchange.peer):
            try:
                self._access.authenticate(bearer_of(exchange), None)
            except AccessDenied as error:
                self._refuse_denied(exchange, error)
                return
        for model, meter in self._meters.items():
            self._metrics.in_flight.labels(model).set(meter.in_flight)
            self._metrics.waiting.labels(model).set(self._proxy.admission.waiting_count(model))
        for model, router in self._table.routers.items():
            self._metrics.ejected.labels(model).set(len(router.ejected()))
        self._metrics.body_bytes.set(self._body_memory.used_bytes)
        exchange.answer(200, self._metrics.exposition(), _TEXT)


_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "overloaded",
    503: "no_instance",
}
