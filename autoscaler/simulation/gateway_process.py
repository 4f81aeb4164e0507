"""A simulated gateway: requests wait, are sent to engines by the routes, tried again or failed.

Owns what the relay and the admission of the real gateway do, on the same `Router` and `WaitQueue`.
Knows no HTTP. An engine that is gone is ejected at once and probed later; a request is tried
elsewhere until its client has seen a token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.component_paths import ComponentPath
from autoscaler.serving.engine_requests import Part, Work
from autoscaler.serving.routing import Pick, Router, RouteUpdate
from autoscaler.serving.routing_policies import DEFAULT, RequestTraits, RoutingPolicy
from autoscaler.serving.score_routing import class_of, fallback_models, model_of
from autoscaler.serving.wait_queue import Ticket, WaitQueue, wait_limits_ms
from autoscaler.simulation.component_stage import AnyEngine, SimStage
from autoscaler.simulation.engine_jobs import Answer, AtStage, Prefill
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import Agenda
from autoscaler.simulation.gateway_meter import Meter
from autoscaler.simulation.simulated_request import Call, Ending
from topics.routing import Endpoint, Routes
from topics.scoring import EVERY, FELL_BACK, ScoreSplit
from topics.telemetry_columns import Kinds, Name, Reported, from_rows

LOOK_MS = 500.0
"""How often a gateway looks for those who have waited too long and for probes that are due."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """As the real gateway's settings. hold_ms: longest wait while nothing serves; queue_ms: of
    all; max_waiting: requests of one model; attempts: instances tried per request; policy: how
    requests are spread."""

    hold_ms: float = 30_000.0
    queue_ms: float = 600_000.0
    max_waiting: int = 10_000
    attempts: int = 3
    policy: RoutingPolicy = DEFAULT


@dataclass(slots=True)
class _Front:
    """One model at one gateway."""

    model: str
    max_len: int
    router: Router
    queue: WaitQueue
    meter: Meter = field(default_factory=Meter)
    waiting: dict[Ticket, Call] = field(default_factory=dict)


class SimGateway:
    """One gateway. engines: those that answer now, by address. ended: told of every end."""

    def __init__(
        self,
        name: str,
        max_len: Mapping[str, int],
        agenda: Agenda,
        engines: Mapping[str, AnyEngine],
        ended: Callable[[Call], None],
        limits: GatewayLimits,
    ) -> None:
        self.name = name
        self._agenda = agenda
        self._engines = engines
        self._ended = ended
        self._limits = limits
        self._sequence = 0
        self._fronts: dict[str, _Front] = {}
        for model, longest in max_len.items():
            router = Router(model, policy=limits.policy)
            queue = WaitQueue(router, limits.hold_ms, limits.queue_ms)
            self._fronts[model] = _Front(model, longest, router, queue)

    def apply(self, routes: Routes) -> None:
        """Go by `routes` from now on."""
        front, limits = self._fronts[routes.model], self._limits
        if front.router.apply(routes) is RouteUpdate.CHANGED:
            front.queue.hold_ms, front.queue.queue_ms = wait_limits_ms(
                limits.hold_ms, limits.queue_ms, routes.start_s
            )
            self._dispatch(front)

    def take(self, call: Call) -> None:
        """A request arrives."""
        front = self._fronts[call.model]
        routes = front.router.routes
        if routes is not None and routes.split is not None:
            front.meter.count_arrival(call.input_tokens, call.output_tokens)
            self._choose(front, call, routes.split)
            front = self._fronts[call.model]
        front.meter.count_arrival(call.input_tokens, call.output_tokens)
        call.kind = front.router.kind_of(call.input_tokens, call.output_tokens, call.media)
        self._enter(front, call)

    def look(self) -> None:
        """Refuse those who have waited too long; probe ejected engines."""
        now_ms = int(self._agenda.now_ms)
        for front in self._fronts.values():
            if front.waiting:
                for ticket, _ in front.queue.expired(now_ms):
                    self._end(front, front.waiting.pop(ticket), Ending.REFUSED)
            back = [end for end in front.router.due_probes(now_ms) if end.address in self._engines]
            for endpoint in back:
                front.router.readmit(endpoint)
            if back:
                self._dispatch(front)

    def report(self, end_ms: int, span_ms: int) -> Reported:
        """One record per model whose routes are known, zeros included; times since the epoch."""
        names: list[Name] = []
        rows: list[list[int]] = []
        cells: list[bytes] = []
        kinds: dict[int, Kinds] = {}
        for front in self._fronts.values():
            routes = front.router.routes
            if routes is None:
                continue
            self._sequence += 1
            row, own_cells, sent = front.meter.told(self._sequence, span_ms, routes.generation)
            if sent:
                kinds[len(rows)] = sent
            names.append((front.model, self.name, "simulated"))
            rows.append(row)
            cells.append(own_cells)
        return from_rows(names, rows, cells, kinds)

    # -- one request --------------------------------------------------------------------------

    def _choose(self, service: _Front, call: Call, split: ScoreSplit) -> None:
        """Which model answers `call`, by its score; another one while that one has no room."""
        number = class_of(split, call.score)
        service.meter.count_class(number)
        chosen = model = model_of(split, number)
        if not self._fronts[chosen].router.has_room():
            others = fallback_models(split, chosen)
            model = next((m for m in others if self._fronts[m].router.has_room()), chosen)
        service.meter.count_sent(EVERY, model)
        service.meter.count_sent(FELL_BACK if model != chosen else "", model)
        call.through, call.model = call.model, model

    def _enter(self, front: _Front, call: Call) -> None:
        if not front.waiting:
            pick = front.router.pick(call.tried, _want(call))
            if pick is not None:
                self._send(front, call, pick)
                return
        ticket = front.queue.join(call.id, call.tried, int(self._agenda.now_ms), _want(call))
        front.waiting[ticket] = call
        self._dispatch(front)
        if ticket in front.waiting and len(front.queue) > self._limits.max_waiting:
            front.queue.leave(ticket)
            self._end(front, front.waiting.pop(ticket), Ending.REFUSED)

    def _dispatch(self, front: _Front) -> None:
        while front.waiting:
            turns = front.queue.dispatch(int(self._agenda.now_ms))
            if not turns:
                return
            sent = [(front.waiting.pop(ticket), pick) for ticket, pick in turns]
            for call, pick in sent:
                self._send(front, call, pick)

    def _send(self, front: _Front, call: Call, pick: Pick) -> None:
        call.attempts += 1
        call.group = pick.path.name if pick.path is not None else pick.group
        front.meter.count_sent(call.kind, call.group)
        engine = self._engines.get(pick.endpoint.address)
        if engine is None:
            front.router.eject(pick.endpoint, int(self._agenda.now_ms))
            front.router.release(pick.endpoint)
            self._again(front, call, pick.endpoint)
        elif isinstance(engine, SimStage):
            assert pick.path is not None  # noqa: S101 - only paths lead to stages
            engine.submit(pick.path.hops[0].runs, AtStage(self, call, pick.path, 0, pick.endpoint))
        elif call.input_tokens + call.output_tokens > front.max_len:
            front.router.release(pick.endpoint)
            self._end(front, call, Ending.FAILED, too_long=True)
        elif pick.prefill:
            work = Work(_name(call), call.input_tokens, 1, Part.PREFILL)
            engine.submit(work, Prefill(self, call, pick, engine))
        else:
            work = Work(_name(call), call.input_tokens, call.output_tokens)
            engine.submit(work, Answer(self, call, pick.endpoint, engine))

    def _again(self, front: _Front, call: Call, failed: Endpoint) -> None:
        """`failed` did not answer: try elsewhere if the client has seen nothing yet."""
        if call.first_ms is not None or call.attempts >= self._limits.attempts:
            self._end(front, call, Ending.FAILED)
            return
        call.tried |= {failed}
        self._enter(front, call)

    def _end(self, front: _Front, call: Call, ending: Ending, too_long: bool = False) -> None:
        call.ending = ending
        if call.end_ms is None:
            call.end_ms = self._agenda.now_ms
        routes = front.router.routes
        limits = (routes.ttft_limit_ms, routes.tpot_limit_ms) if routes else (0.0, 0.0)
        front.meter.ended(call, too_long, *limits)
        if call.through:
            self._fronts[call.through].meter.ended(call, too_long, *limits)
        self._ended(call)

    # -- what jobs tell -----------------------------------------------------------------------

    def answered(self, call: Call, endpoint: Endpoint) -> None:
        """A request was answered in full by `endpoint`."""
        front = self._fronts[call.model]
        self._end(front, call, Ending.SERVED)
        self._left(front, endpoint)

    def lost(self, call: Call, endpoint: Endpoint) -> None:
        """`endpoint` is gone with a request inside."""
        front = self._fronts[call.model]
        front.router.eject(endpoint, int(self._agenda.now_ms))
        front.router.release(endpoint)
        self._again(front, call, endpoint)

    def left_stage(self, call: Call, way: ComponentPath, hop: int, endpoint: Endpoint) -> None:
        """A stage is done with a request: on to the next one, or back to its client."""
        front = self._fronts[call.model]
        if hop + 1 == len(way.hops):
            call.first_ms = self._agenda.now_ms
            self.answered(call, endpoint)
            return
        self._left(front, endpoint)
        further = front.router.pick_hop(way, hop + 1, call.tried)
        engine = self._engines.get(further.address) if further else None
        if further is None or not isinstance(engine, SimStage):
            if further is not None:
                front.router.eject(further, int(self._agenda.now_ms))
                front.router.release(further)
            self._again(front, call, further or endpoint)
            return
        engine.submit(way.hops[hop + 1].runs, AtStage(self, call, way, hop + 1, further))

    def hand_over(self, call: Call, pick: Pick, prefill: SimEngine) -> None:
        """The prefill is done: its KV goes to a decode instance of the same group."""
        front = self._fronts[call.model]
        self._left(front, pick.endpoint)
        router = front.router
        decoder = router.pick_decode(pick.group, call.tried) or router.pick_decode(pick.group)
        engine = self._engines.get(decoder.address) if decoder else None
        if decoder is None or not isinstance(engine, SimEngine):
            if decoder is not None:
                router.eject(decoder, int(self._agenda.now_ms))
                router.release(decoder)
            self._again(front, call, decoder or pick.endpoint)
            return
        slower = min(prefill.setup, engine.setup, key=lambda setup: setup.kv_gb_s)
        transfer_ms = slower.transfer_ms(call.input_tokens)
        if not prefill.give_kv(_name(call), transfer_ms):
            router.release(decoder)
            self._again(front, call, pick.endpoint)
            return
        work = Work(_name(call), call.input_tokens, call.output_tokens, Part.DECODE, transfer_ms)
        engine.submit(work, Answer(self, call, decoder, engine))

    def _left(self, front: _Front, endpoint: Endpoint) -> None:
        front.router.release(endpoint)
        self._dispatch(front)


def _want(call: Call) -> RequestTraits:
    return RequestTraits(call.input_tokens + call.output_tokens, kind=call.kind)


def _name(call: Call) -> int:
    """A request's id at engines: another one for each attempt, as at the real gateway."""
    return call.id * 16 + call.attempts
