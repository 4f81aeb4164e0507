"""Simulates weeks quickly: demand and service are rates instead of single requests.

The differences from `simulator`: the gateway handles counts of requests (`rate_flow`) and reports
at least every `QUIET_STEP_S`, so that windows contain the variation of demand. Engines only have a
load. There is a tick in each second in which an instance changes, else every `QUIET_STEP_S`. While
rates and lengths are constant, ticks are up to `MAX_STEP_FEW_S` apart, or `MAX_STEP_S` if there are
many requests. The simulator looks ahead at the demand to choose the step; the decider does not.
Requests in a lost engine count as served.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import ArrivalFlow
from autoscaler.simulation.component_stage import AnyEngine, AnySetup
from autoscaler.simulation.decider import Decider, DeciderOutput
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.flow_engine import FlowEngine
from autoscaler.simulation.flow_meter import FlowMeter
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.rate_flow import Cohort, Flow, InstanceSet, instance_speed
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.status_copies import set_reported_ms
from autoscaler.simulation.supply_script import NodeLost, ScriptEvent
from autoscaler.simulation.timeline import FlowRow, Timeline
from autoscaler.simulation.virtual_planner import PlanFunction, plan_in_process
from topics.fleet import InstanceState, Status
from topics.routing import Endpoint, RouteGroup, Routes
from topics.telemetry_columns import TelemetryBatch, batch_from_rows

QUIET_STEP_S, MAX_STEP_FEW_S, MAX_STEP_S = 10, 30, 90
"""Seconds between ticks while no instance changes: step if rates or lengths change, longest step
for few requests if they do not, and longest step for many requests."""
MANY_REQ_PER_S = 100.0
"""From this rate in requests/s on, requests are "many": the count of a minute varies by about a
percent. At lower rates, chance can change the fleet, and a decider with rare ticks would miss
that."""
_TICK_STATES = {
    InstanceState.READY,
    InstanceState.ASLEEP,
    InstanceState.STOPPED,
    InstanceState.FAILED,
}
"""If an instance enters one of these states, a tick follows, because a decision may be needed.
Starts, which the decider orders, and drains need none."""
_DRAIN_S = 600.0


def simulate_rates(
    scenario: Scenario, decider: Decider, plan: PlanFunction = plan_in_process
) -> Timeline:
    """Run `scenario` under `decider` with rates instead of requests. `Timeline.flows` holds the
    result."""
    return RateSimulator(scenario, decider, plan).run()


_GroupKind = tuple[EngineSetup, EngineSetup | None, float, float]
"""Groups of equal behaviour: the setup of the first instances (aggregated or prefill), the setup of
the decode instances behind them, decode instances per first one, and the weight per first one."""


@dataclass(slots=True)
class _ServingInstances:
    """Running instances of a model.

    kinds: by an identifying key, a kind of group and the number of its first (aggregated or
    prefill) instances.
    """

    engines: list[FlowEngine] = field(default_factory=list)
    kinds: dict[tuple[float, ...], tuple[_GroupKind, int]] = field(default_factory=dict)

    def add(self, group: RouteGroup, first: list[FlowEngine], decode: list[FlowEngine]) -> None:
        """Add a group. first: its running aggregated or prefill instances. decode: its running
        decode instances."""
        self.engines += first + decode
        setup, behind = first[0].setup, decode[0].setup if decode else None
        # Groups of one kind form one instance set, because their instances have equal shares.
        shared = len(decode) / len(first), group.weight / len(first)
        key = id(setup), id(behind), *shared
        _, count = self.kinds.get(key, (None, 0))
        self.kinds[key] = (setup, behind, *shared), count + len(first)


class FlowGateway:
    """Sends the flows of all models through their instances, by the routes."""

    def __init__(
        self,
        cluster: Cluster,
        arrival_flows: Mapping[str, ArrivalFlow],
        events: EventQueue,
        engines: Mapping[str, AnyEngine],
        limits: GatewayLimits,
        lead_s: float,
        random: np.random.Generator,
    ) -> None:
        self.name = "gateway-0"
        self._random = random
        self._events = events
        self._engines = engines
        self._lead_s = lead_s
        self._arrival_flows = arrival_flows
        self._sequence = 0
        self._routes: dict[str, Routes] = {}
        self._meters = {service.model: FlowMeter() for service in cluster.services}
        self._flows = {
            service.model: Flow(
                service.slo, limits.hold_ms / 1e3, limits.queue_ms / 1e3, limits.max_waiting
            )
            for service in cluster.services
        }
        self._serving: dict[str, _ServingInstances] = {}
        self._set_cache: dict[str, tuple[object, list[InstanceSet]]] = {}
        self.rows: list[FlowRow] = []

    @property
    def busy(self) -> bool:
        """Whether some requests have not ended yet."""
        return any(flow.in_flight for flow in self._flows.values())

    def is_steady(self, from_s: float, to_s: float) -> bool:
        """Whether the rates and lengths in the coming span [from_s, to_s) equal the recent ones,
        and no request waits."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        if not all(
            arrival_flow.has_same_lengths(since_s, until_s)
            for arrival_flow in self._arrival_flows.values()
        ):
            return False
        expected_requests = {
            m: arrival_flow.expected_requests(since_s, until_s)
            for m, arrival_flow in self._arrival_flows.items()
        }
        return all(
            flow.is_steady(expected_requests.get(m, 0.0), to_s - from_s)
            for m, flow in self._flows.items()
        )

    def has_few_requests(self, from_s: float, to_s: float) -> bool:
        """Whether a model has few requests in the coming span [from_s, to_s), so that chance
        matters."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        many = MANY_REQ_PER_S * (to_s - from_s)
        return any(
            0.0 < one.expected_requests(since_s, until_s) < many
            for one in self._arrival_flows.values()
        )

    def apply(self, routes: Routes) -> None:
        """Use `routes` from now on."""
        self._routes[routes.model] = routes

    def refresh_serving(self) -> None:
        """Look up the running instances of each model. Later flows go to these instances."""
        self._serving = {model: self._serving_instances(model) for model in self._arrival_flows}

    def flow(self, from_s: float, to_s: float, open_: bool = True) -> None:
        """Simulate [from_s, to_s). open_: whether requests still arrive."""
        for model, flow in self._flows.items():
            arrival_flow, meter = self._arrival_flows.get(model), self._meters[model]
            if arrival_flow is None:
                continue
            since_s = from_s - self._lead_s
            batch = (
                arrival_flow.take(since_s, to_s - self._lead_s)
                if open_
                else arrival_flow.take(0.0, 0.0)
            )
            if batch.requests:
                meter.count_arrivals(batch)
            lengths = arrival_flow.lengths(since_s)
            instance_sets = self._instance_sets(model, lengths) if lengths else []
            for cohort in flow.advance(batch, from_s, to_s, instance_sets):
                meter.count_ended(cohort)
                self._row(model, cohort)
            meter.in_flight = flow.in_flight

    def report(self, end_ms: int, span_ms: int) -> TelemetryBatch:
        """One record per model with known routes."""
        reports = []
        for model, routes in self._routes.items():
            self._sequence += 1
            reports.append(self._meters[model].report(self._sequence, span_ms, routes.generation))
        names = [(model, self.name, "simulated") for model in self._routes]
        return batch_from_rows(names, [row for row, _ in reports], [cells for _, cells in reports])

    def load(self, now_s: float) -> None:
        """Give each engine its number of requests at `now_s`. All flows up to `now_s` must have
        been simulated."""
        for model, serving in self._serving.items():
            flow, engines = self._flows[model], serving.engines
            inside = min(flow.in_flight, math.ceil(flow.req_per_s * flow.stay_s))
            for one in engines:
                one.set_load(math.ceil(inside / len(engines)), 1000.0 * (now_s + flow.stay_s))

    def drop_unfinished(self, now_s: float) -> None:
        """Drop the requests that have not ended by the end of the scenario."""
        for model, flow in self._flows.items():
            for cohort in (*flow.in_service, *flow.waiting):
                self._row(model, cohort)
            flow.in_service.clear()
            flow.waiting.clear()

    def _row(self, model: str, cohort: Cohort) -> None:
        batch = cohort.batch
        tokens = batch.output_tokens * cohort.attained / max(1, batch.servable)
        self.rows.append(
            FlowRow(model, cohort.at_s, batch.requests, cohort.served, cohort.attained, tokens)
        )

    def _serving_instances(self, model: str) -> _ServingInstances:
        routes = self._routes.get(model)
        serving = _ServingInstances()
        for group in routes.groups if routes else ():
            decode = self._running_engines(group.decode)
            whole, prefill = (
                self._running_engines(group.aggregated),
                self._running_engines(group.prefill),
            )
            if whole:
                serving.add(group, whole, [])
            elif prefill and decode:
                serving.add(group, prefill, decode)
        return serving

    def _running_engines(self, ends: Iterable[Endpoint]) -> list[FlowEngine]:
        engines = (self._engines.get(end.address) for end in ends)
        return [one for one in engines if isinstance(one, FlowEngine)]

    def _instance_sets(self, model: str, lengths: Lengths) -> list[InstanceSet]:
        kinds = self._serving[model].kinds
        key = [(kind, count) for kind, (_, count) in kinds.items()], lengths
        known = self._set_cache.get(model)
        if known is not None and known[0] == key:
            return known[1]
        count = sum(count for _, count in kinds.values())
        cv = max(0.05, 2.0 ** (-0.5 * round(math.log2(max(1, count)))))
        made = []
        for (setup, behind, decodes, weight), count in kinds.values():
            phase = Phase.PREFILL if behind else Phase.AGGREGATED
            each = instance_speed(
                (setup, phase), (behind, decodes) if behind else None, lengths, cv
            )
            made.append(InstanceSet(count * weight, count, each, self._random))
        self._set_cache[model] = key, made
        return made


class RateSimulator(Simulator):
    """One run; call `run` once."""

    def __init__(
        self, scenario: Scenario, decider: Decider, plan: PlanFunction = plan_in_process
    ) -> None:
        parts = [service.model for service in scenario.cluster.services if service.graph]
        parts += [route.name for route in scenario.cluster.routes]
        if parts:
            allowed = "single models without components, where rates are simulated"
            raise InvalidValue("models", ", ".join(parts), allowed)
        super().__init__(scenario, decider, plan)
        random = np.random.default_rng(scenario.seed)
        arrival_flows = {}
        for service in self.cluster.services:
            mine = [arrival for arrival in scenario.arrivals if arrival.model == service.model]
            if mine:
                arrival_flows[service.model] = ArrivalFlow(
                    mine, service.max_len_tokens, scenario.weight, random
                )
        self.gateway = FlowGateway(
            self.cluster,
            arrival_flows,
            self.events,
            self.engines,
            scenario.limits,
            scenario.lead_s,
            random.spawn(1)[0],
        )
        self.gateways = (self.gateway,)
        self._last_s = 0
        self._next_s = 0
        self._tick_next_second = False
        self._serving_changed = True  # since the last refresh_serving
        self._idle_statuses: dict[str, Status] = {}  # statuses of nodes without instances

    def start_engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """Start an engine process that answers at `address`."""
        if not isinstance(setup, EngineSetup):
            raise InvalidValue("model", setup, "one without components")
        return FlowEngine(setup, self.events, address)

    def report_status(self, status: Status) -> None:
        """Publish `status` of a node. A change of an instance's state leads to a tick within a
        second."""
        known = self.statuses.get(status.node)
        super().report_status(status)
        if status.instances:
            self._idle_statuses.pop(status.node, None)
        else:
            self._idle_statuses[status.node] = status
        was = {one.instance: one.state for one in known.instances} if known else {}
        now = {one.instance: one.state for one in status.instances}
        self._serving_changed |= known is None or was != now
        if known is None or any(s in _TICK_STATES and was.get(one) != s for one, s in now.items()):
            self._schedule_tick(math.floor(self.events.now_ms / 1000.0) + 1)

    def _send_heartbeats(self) -> None:
        # Most nodes are unchanged since the last tick. Their statuses get the new time in place,
        # which is safe because no other object holds them.
        at_ms = self.epoch_ms(self.events.now_ms)
        for status in self._idle_statuses.values():
            set_reported_ms(status, at_ms)
        for name, node in self.nodes.items():
            if name not in self._idle_statuses and node.due_ms <= self.events.now_ms:
                node.heartbeat(at_ms)

    def finish(self) -> Timeline:
        """As `Simulator.finish`. Requests under way may still end."""
        now_s = self.events.now_ms / 1000.0
        self.gateway.refresh_serving()
        if now_s > self._last_s:
            self.gateway.flow(self._last_s, now_s)
        timeline = super().finish()
        until_s = now_s + _DRAIN_S
        while self.gateway.busy and now_s < until_s:
            self.gateway.flow(now_s, now_s + QUIET_STEP_S, open_=False)
            now_s += QUIET_STEP_S
        self.gateway.drop_unfinished(now_s)
        timeline.flows = sorted(self.gateway.rows, key=lambda row: (row.arrival_s, row.model))
        return timeline

    def _start_clocks(self) -> None:
        self._next_s = -1
        self._schedule_tick(0)

    def _schedule_tick(self, at_s: int) -> None:
        """Schedule a tick at second `at_s`, unless an earlier tick is scheduled."""
        if self._last_s < at_s and self._last_s < self._next_s <= at_s:
            return
        self._next_s = at_s
        self.events.at(1000.0 * at_s, lambda: self._run_tick(at_s))

    def _run_tick(self, at_s: int) -> None:
        if at_s != self._next_s:
            return  # an earlier tick replaced this one
        if self._serving_changed:
            self._serving_changed = False
            self.gateway.refresh_serving()
        while self._last_s < at_s:
            to_s = min(at_s, (self._last_s // QUIET_STEP_S + 1) * QUIET_STEP_S)
            self.gateway.flow(self._last_s, to_s)
            self._report(1000.0 * to_s, 1000 * (to_s - self._last_s))
            self._last_s = to_s
        self.gateway.load(at_s)
        self._send_heartbeats()
        self._tick_next_second = False
        self._decide()
        self._schedule_tick(at_s + 1 if self._tick_next_second else self._next_quiet_tick(at_s))

    def _next_quiet_tick(self, at_s: int) -> int:
        """Second of the next tick if nothing but rates changes until then."""
        quiet_s = (at_s + QUIET_STEP_S) // QUIET_STEP_S * QUIET_STEP_S
        is_steady = self.gateway.is_steady
        longest_s = MAX_STEP_FEW_S if self.gateway.has_few_requests(at_s, quiet_s) else MAX_STEP_S
        while (
            (next_s := quiet_s + QUIET_STEP_S) <= at_s + longest_s
            and is_steady(quiet_s, next_s)
            and is_steady(at_s, next_s)
        ):
            quiet_s = next_s
        return quiet_s

    def _apply_event(self, event: ScriptEvent) -> None:
        super()._apply_event(event)
        self._serving_changed = True
        if isinstance(event, NodeLost):
            self._idle_statuses.pop(event.node, None)
        self._schedule_tick(math.floor(self.events.now_ms / 1000.0) + 1)

    def _on_answer(self) -> None:
        # The tick needs telemetry up to now, because stale telemetry would prevent every removal.
        if self.planner.is_due(self.events.now_ms):
            self._schedule_tick(math.ceil(self.events.now_ms / 1000.0))

    def _apply_output(self, output: DeciderOutput) -> None:
        super()._apply_output(output)
        if output.routes:
            self._tick_next_second = True
            self._schedule_tick(math.floor(self.events.now_ms / 1000.0) + 1)

    def _deliver(self, output: DeciderOutput) -> None:
        super()._deliver(output)
        self._serving_changed = True
