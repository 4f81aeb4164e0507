"""A simulated gateway: it queues requests, sends them to engines by the routes, and retries failed
ones.

It combines the proxy and the admission of the real gateway, with its `Router` and `WaitQueue`, but
without HTTP. A lost engine is ejected at once and probed later. A request is retried on another
engine if its client has not received a token yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.engine_requests import Part, Work
from autoscaler.serving.request_router import Pick, Router, RouteUpdate
from autoscaler.serving.routing_policies import DEFAULT, RequestTraits, RoutingPolicy
from autoscaler.serving.score_routing import class_of, fallback_models, model_of
from autoscaler.serving.wait_queue import Ticket, WaitQueue, wait_limits_ms
from autoscaler.simulation.component_stage import AnyEngine, SimStage
from autoscaler.simulation.engine_jobs import Answer, AtStage, Prefill
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.gateway_meter import GatewayMeter
from autoscaler.simulation.simulated_request import Call, Ending
from topics.routing import Endpoint, Routes
from topics.scoring import ALL_REQUESTS, FALLBACK, ScoreSplit
from topics.telemetry_columns import SentByKind, SourceName, TelemetryBatch, batch_from_rows

GATEWAY_CHECK_MS = 500.0
"""Period in ms at which a gateway refuses overdue requests and runs due probes."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Settings as in the real gateway.

    hold_ms: longest wait while no instance serves. queue_ms: longest wait while some instance
    serves. max_waiting: maximum number of waiting requests of one model. attempts: maximum number
    of instances tried per request. policy: how requests are spread.
    """

    hold_ms: float = 30_000.0
    queue_ms: float = 600_000.0
    max_waiting: int = 10_000
    attempts: int = 3
    policy: RoutingPolicy = DEFAULT


@dataclass(slots=True)
class _ModelFrontend:
    """The state of one model at one gateway."""

    model: str
    max_len: int
    router: Router
    queue: WaitQueue
    meter: GatewayMeter = field(default_factory=GatewayMeter)
    waiting: dict[Ticket, Call] = field(default_factory=dict)


class SimGateway:
    """One gateway. engines: running engines by address. ended: called for every request when it
    ends."""

    def __init__(
        self,
        name: str,
        max_len: Mapping[str, int],
        events: EventQueue,
        engines: Mapping[str, AnyEngine],
        ended: Callable[[Call], None],
        limits: GatewayLimits,
    ) -> None:
        self.name = name
        self._events = events
        self._engines = engines
        self._ended = ended
        self._limits = limits
        self._sequence = 0
        self._frontends: dict[str, _ModelFrontend] = {}
        for model, longest in max_len.items():
            router = Router(model, policy=limits.policy)
            queue = WaitQueue(router, limits.hold_ms, limits.queue_ms)
            self._frontends[model] = _ModelFrontend(model, longest, router, queue)

    def apply(self, routes: Routes) -> None:
        """Use `routes` from now on."""
        frontend, limits = self._frontends[routes.model], self._limits
        if frontend.router.apply(routes) is RouteUpdate.CHANGED:
            frontend.queue.hold_ms, frontend.queue.queue_ms = wait_limits_ms(
                limits.hold_ms, limits.queue_ms, routes.start_s
            )
            self._dispatch(frontend)

    def receive(self, call: Call) -> None:
        """A request arrives."""
        frontend = self._frontends[call.model]
        routes = frontend.router.routes
        if routes is not None and routes.split is not None:
            frontend.meter.count_arrival(call.input_tokens, call.output_tokens)
            self._choose_model(frontend, call, routes.split)
            frontend = self._frontends[call.model]
        frontend.meter.count_arrival(call.input_tokens, call.output_tokens)
        call.kind = frontend.router.kind_of(call.input_tokens, call.output_tokens, call.media)
        self._route(frontend, call)

    def check_waiting(self) -> None:
        """Refuse requests that have waited too long, and probe ejected engines."""
        now_ms = int(self._events.now_ms)
        for frontend in self._frontends.values():
            if frontend.waiting:
                for ticket, _ in frontend.queue.expired(now_ms):
                    self._end(frontend, frontend.waiting.pop(ticket), Ending.REFUSED)
            back = [
                end for end in frontend.router.due_probes(now_ms) if end.address in self._engines
            ]
            for endpoint in back:
                frontend.router.readmit(endpoint)
            if back:
                self._dispatch(frontend)

    def report(self, end_ms: int, span_ms: int) -> TelemetryBatch:
        """One record per model with known routes, including zeros. Times are ms since the epoch."""
        names: list[SourceName] = []
        rows: list[list[int]] = []
        cells: list[bytes] = []
        kinds: dict[int, SentByKind] = {}
        for frontend in self._frontends.values():
            routes = frontend.router.routes
            if routes is None:
                continue
            self._sequence += 1
            row, own_cells, sent = frontend.meter.take_report(
                self._sequence, span_ms, routes.generation
            )
            if sent:
                kinds[len(rows)] = sent
            names.append((frontend.model, self.name, "simulated"))
            rows.append(row)
            cells.append(own_cells)
        return batch_from_rows(names, rows, cells, kinds)

    # -- one request --------------------------------------------------------------------------

    def _choose_model(self, service: _ModelFrontend, call: Call, split: ScoreSplit) -> None:
        """Choose the model for `call` by its score, or another model of the service while this
        model has no free slot."""
        number = class_of(split, call.score)
        service.meter.count_class(number)
        chosen = model = model_of(split, number)
        if not self._frontends[chosen].router.has_room():
            others = fallback_models(split, chosen)
            model = next((m for m in others if self._frontends[m].router.has_room()), chosen)
        service.meter.count_sent(ALL_REQUESTS, model)
        service.meter.count_sent(FALLBACK if model != chosen else "", model)
        call.routed_by, call.model = call.model, model

    def _route(self, frontend: _ModelFrontend, call: Call) -> None:
        if not frontend.waiting:
            pick = frontend.router.pick(call.tried, _request_traits(call))
            if pick is not None:
                self._send(frontend, call, pick)
                return
        ticket = frontend.queue.join(
            call.id, call.tried, int(self._events.now_ms), _request_traits(call)
        )
        frontend.waiting[ticket] = call
        self._dispatch(frontend)
        if ticket in frontend.waiting and len(frontend.queue) > self._limits.max_waiting:
            frontend.queue.leave(ticket)
            self._end(frontend, frontend.waiting.pop(ticket), Ending.REFUSED)

    def _dispatch(self, frontend: _ModelFrontend) -> None:
        while frontend.waiting:
            turns = frontend.queue.dispatch(int(self._events.now_ms))
            if not turns:
                return
            sent = [(frontend.waiting.pop(ticket), pick) for ticket, pick in turns]
            for call, pick in sent:
                self._send(frontend, call, pick)

    def _send(self, frontend: _ModelFrontend, call: Call, pick: Pick) -> None:
        call.attempts += 1
        call.group = pick.path.name if pick.path is not None else pick.group
        frontend.meter.count_sent(call.kind, call.group)
        engine = self._engines.get(pick.endpoint.address)
        if engine is None:
            frontend.router.eject(pick.endpoint, int(self._events.now_ms))
            frontend.router.release(pick.endpoint)
            self._retry(frontend, call, pick.endpoint)
        elif isinstance(engine, SimStage):
            assert pick.path is not None  # noqa: S101 - only paths lead to stages
            engine.submit(pick.path.hops[0].runs, AtStage(self, call, pick.path, 0, pick.endpoint))
        elif call.input_tokens + call.output_tokens > frontend.max_len:
            frontend.router.release(pick.endpoint)
            self._end(frontend, call, Ending.FAILED, too_long=True)
        elif pick.prefill:
            work = Work(
                _engine_request_id(call), call.input_tokens, 1, Part.PREFILL, blocks=call.blocks
            )
            engine.submit(work, Prefill(self, call, pick, engine))
        else:
            work = Work(
                _engine_request_id(call), call.input_tokens, call.output_tokens, blocks=call.blocks
            )
            engine.submit(work, Answer(self, call, pick.endpoint, engine))

    def _retry(self, frontend: _ModelFrontend, call: Call, failed: Endpoint) -> None:
        """Try another instance, because `failed` did not answer. The call fails if its client has
        received a token."""
        if call.first_ms is not None or call.attempts >= self._limits.attempts:
            self._end(frontend, call, Ending.FAILED)
            return
        call.tried |= {failed}
        self._route(frontend, call)

    def _end(
        self, frontend: _ModelFrontend, call: Call, ending: Ending, too_long: bool = False
    ) -> None:
        call.ending = ending
        if call.end_ms is None:
            call.end_ms = self._events.now_ms
        routes = frontend.router.routes
        limits = (routes.ttft_limit_ms, routes.tpot_limit_ms) if routes else (0.0, 0.0)
        frontend.meter.count_ended(call, too_long, *limits)
        if call.routed_by:
            self._frontends[call.routed_by].meter.count_ended(call, too_long, *limits)
        self._ended(call)

    # -- progress of requests -----------------------------------------------------------------

    def on_answered(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` has answered a whole request."""
        frontend = self._frontends[call.model]
        self._end(frontend, call, Ending.SERVED)
        self._release(frontend, endpoint)

    def on_engine_lost(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` was lost while it held a request."""
        frontend = self._frontends[call.model]
        frontend.router.eject(endpoint, int(self._events.now_ms))
        frontend.router.release(endpoint)
        self._retry(frontend, call, endpoint)

    def on_stage_finished(
        self, call: Call, path: ComponentPath, hop: int, endpoint: Endpoint
    ) -> None:
        """A stage has finished a request: send the request to the next stage, or answer the
        client."""
        frontend = self._frontends[call.model]
        if hop + 1 == len(path.hops):
            call.first_ms = self._events.now_ms
            self.on_answered(call, endpoint)
            return
        self._release(frontend, endpoint)
        further = frontend.router.pick_hop(path, hop + 1, call.tried)
        engine = self._engines.get(further.address) if further else None
        if further is None or not isinstance(engine, SimStage):
            if further is not None:
                frontend.router.eject(further, int(self._events.now_ms))
                frontend.router.release(further)
            self._retry(frontend, call, further or endpoint)
            return
        engine.submit(path.hops[hop + 1].runs, AtStage(self, call, path, hop + 1, further))

    def hand_over_kv(self, call: Call, pick: Pick, prefill: SimEngine) -> None:
        """The prefill has finished: transfer its KV cache to a decode instance of its group."""
        frontend = self._frontends[call.model]
        self._release(frontend, pick.endpoint)
        router = frontend.router
        decoder = router.pick_decode(pick.group, call.tried) or router.pick_decode(pick.group)
        engine = self._engines.get(decoder.address) if decoder else None
        if decoder is None or not isinstance(engine, SimEngine):
            if decoder is not None:
                router.eject(decoder, int(self._events.now_ms))
                router.release(decoder)
            self._retry(frontend, call, decoder or pick.endpoint)
            return
        slower = min(prefill.setup, engine.setup, key=lambda setup: setup.kv_gb_s)
        transfer_ms = slower.transfer_ms(call.input_tokens)
        if not prefill.transfer_kv(_engine_request_id(call), transfer_ms):
            router.release(decoder)
            self._retry(frontend, call, pick.endpoint)
            return
        work = Work(
            _engine_request_id(call),
            call.input_tokens,
            call.output_tokens,
            Part.DECODE,
            transfer_ms,
        )
        engine.submit(work, Answer(self, call, decoder, engine))

    def _release(self, frontend: _ModelFrontend, endpoint: Endpoint) -> None:
        frontend.router.release(endpoint)
        self._dispatch(frontend)


def _request_traits(call: Call) -> RequestTraits:
    tokens = call.input_tokens + call.output_tokens
    return RequestTraits(tokens, blocks=call.blocks, kind=call.kind)


def _engine_request_id(call: Call) -> int:
    """Id of a request at engines. Each attempt has an id of its own, as at the real gateway."""
    return call.id * 16 + call.attempts
