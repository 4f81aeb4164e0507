"""Weeks at once: the same world and decider, with demand and service as rates.

Owns what differs from `world`: a gateway that lets counts of requests flow (`fluid_flow`) and
reports every `QUIET_S`, so that windows see how demand scatters; engines that only know their load;
and ticks that come at each second where something changes, else every `QUIET_S`, or up to
`FEW_LONGEST_S` apart while rates and lengths stay what they were (the world knows what comes, the
decider does not), and `LONGEST_S` where requests are many. Nodes, the planner, prices, reclaims and
the bill are those of `world`. What was in an engine that is lost counts as served.
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
from autoscaler.simulation.arrival_flow import Inflow
from autoscaler.simulation.component_stage import AnyEngine, AnySetup
from autoscaler.simulation.decider import Decider, Said
from autoscaler.simulation.engine_process import SimEngine
from autoscaler.simulation.event_queue import Agenda
from autoscaler.simulation.flow_meter import FlowMeter
from autoscaler.simulation.gateway_process import GatewayLimits
from autoscaler.simulation.rate_flow import Cohort, Flow, Way, pace
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import World
from autoscaler.simulation.status_copies import date
from autoscaler.simulation.supply_script import Happening, NodeLost
from autoscaler.simulation.timeline import FlowRow, Timeline
from autoscaler.simulation.virtual_planner import Plan, plan_in_process
from topics.fleet import InstanceState, Status
from topics.routing import Endpoint, RouteGroup, Routes
from topics.telemetry_columns import Reported, from_rows

QUIET_S, FEW_LONGEST_S, LONGEST_S = 10, 30, 90
"""Between ticks while no instance changes: where rates or lengths do, and at most where they do
not, by whether requests are few or many."""
MANY_REQ_PER_S = 100.0
"""A minute's count of so many scatters by little more than a percent. That of fewer moves a fleet
by chance, and a decider that looks rarely misses what it would do each second."""
_CALLS = {InstanceState.READY, InstanceState.ASLEEP, InstanceState.STOPPED, InstanceState.FAILED}
"""What an instance comes to that there may be something to decide then: not at its start, which
was ordered, nor while it drains."""
_SETTLE_S = 600.0


def simulate_flow(scenario: Scenario, decider: Decider, plan: Plan = plan_in_process) -> Timeline:
    """Run `scenario` under `decider` with rates instead of requests; `Timeline.flows` says what
    became of them."""
    return FlowWorld(scenario, decider, plan).run()


class FlowEngine(SimEngine):
    """An engine that knows how many requests are in it, and for how long."""

    def __init__(self, setup: EngineSetup, agenda: Agenda, address: str) -> None:
        self.setup = setup
        self.address = address
        self._agenda = agenda
        self._load = 0
        self._until_ms = 0.0

    @property
    def in_flight(self) -> int:
        """Requests inside."""
        return self._load if self._agenda.now_ms < self._until_ms else 0

    @property
    def held_kv(self) -> int:
        """KV goes at once."""
        return 0

    def carry(self, load: int, until_ms: float) -> None:
        """So many requests are in it until then, unless more come."""
        self._load, self._until_ms = load, until_ms

    def die(self) -> None:
        """Its load is gone."""
        self._until_ms = 0.0


_Kind = tuple[EngineSetup, EngineSetup | None, float, float]
"""Groups that are one way: the setups of their first instances and of the decode instances behind
them, how many of these there are for each of those, and the weight of each first one."""


@dataclass(slots=True)
class _Serving:
    """Who serves a model. kinds: first instances of each kind, by what tells it from others."""

    engines: list[FlowEngine] = field(default_factory=list)
    kinds: dict[tuple[float, ...], tuple[_Kind, int]] = field(default_factory=dict)

    def add(self, group: RouteGroup, first: list[FlowEngine], decode: list[FlowEngine]) -> None:
        """A group whose first and decode instances answer."""
        self.engines += first + decode
        setup, behind = first[0].setup, decode[0].setup if decode else None
        # Where each instance has the same share, groups of a kind are one way.
        shared = len(decode) / len(first), group.weight / len(first)
        key = id(setup), id(behind), *shared
        _, count = self.kinds.get(key, (None, 0))
        self.kinds[key] = (setup, behind, *shared), count + len(first)


class FlowGateway:
    """All models' flows, by the routes."""

    def __init__(
        self,
        cluster: Cluster,
        inflows: Mapping[str, Inflow],
        agenda: Agenda,
        engines: Mapping[str, AnyEngine],
        limits: GatewayLimits,
        lead_s: float,
        random: np.random.Generator,
    ) -> None:
        self.name = "gateway-0"
        self._random = random
        self._agenda = agenda
        self._engines = engines
        self._lead_s = lead_s
        self._inflows = inflows
        self._sequence = 0
        self._routes: dict[str, Routes] = {}
        self._meters = {service.model: FlowMeter() for service in cluster.services}
        self._flows = {
            service.model: Flow(
                service.slo, limits.hold_ms / 1e3, limits.queue_ms / 1e3, limits.max_waiting
            )
            for service in cluster.services
        }
        self._serving: dict[str, _Serving] = {}
        self._ways: dict[str, tuple[object, list[Way]]] = {}
        self.rows: list[FlowRow] = []

    @property
    def busy(self) -> bool:
        """Whether any request has not ended."""
        return any(flow.in_flight for flow in self._flows.values())

    def is_usual(self, from_s: float, to_s: float) -> bool:
        """Whether the rates of [from_s, to_s), still to come, are those of lately, requests as long
        as they were, and nothing waits."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        if not all(inflow.is_alike(since_s, until_s) for inflow in self._inflows.values()):
            return False
        coming = {m: inflow.coming(since_s, until_s) for m, inflow in self._inflows.items()}
        return all(
            flow.is_usual(coming.get(m, 0.0), to_s - from_s) for m, flow in self._flows.items()
        )

    def has_few(self, from_s: float, to_s: float) -> bool:
        """Whether chance has a say in [from_s, to_s), still to come: in the requests of a model."""
        since_s, until_s = from_s - self._lead_s, to_s - self._lead_s
        many = MANY_REQ_PER_S * (to_s - from_s)
        return any(0.0 < one.coming(since_s, until_s) < many for one in self._inflows.values())

    def apply(self, routes: Routes) -> None:
        """Go by `routes` from now on."""
        self._routes[routes.model] = routes

    def look(self) -> None:
        """See who serves: what flows from now on goes there."""
        self._serving = {model: self._who_serves(model) for model in self._inflows}

    def flow(self, from_s: float, to_s: float, open_: bool = True) -> None:
        """Everything that happens in [from_s, to_s); open_: requests still come."""
        for model, flow in self._flows.items():
            inflow, meter = self._inflows.get(model), self._meters[model]
            if inflow is None:
                continue
            since_s = from_s - self._lead_s
            batch = inflow.take(since_s, to_s - self._lead_s) if open_ else inflow.take(0.0, 0.0)
            if batch.requests:
                meter.came(batch)
            lengths = inflow.lengths(since_s)
            ways = self._ways_of(model, lengths) if lengths else []
            for cohort in flow.go_on(batch, from_s, to_s, ways):
                meter.ended(cohort)
                self._row(model, cohort)
            meter.in_flight = flow.in_flight

    def report(self, end_ms: int, span_ms: int) -> Reported:
        """One record per model whose routes are known."""
        said = []
        for model, routes in self._routes.items():
            self._sequence += 1
            said.append(self._meters[model].report(self._sequence, span_ms, routes.generation))
        names = [(model, self.name, "simulated") for model in self._routes]
        return from_rows(names, [row for row, _ in said], [cells for _, cells in said])

    def load(self, now_s: float) -> None:
        """Tell the engines how many requests are in them at `now_s`, until when all has flowed."""
        for model, serving in self._serving.items():
            flow, engines = self._flows[model], serving.engines
            inside = min(flow.in_flight, math.ceil(flow.req_per_s * flow.stay_s))
            for one in engines:
                one.carry(math.ceil(inside / len(engines)), 1000.0 * (now_s + flow.stay_s))

    def settle(self, now_s: float) -> None:
        """What has not ended by the end of the scenario is dropped."""
        for model, flow in self._flows.items():
            for cohort in (*flow.under_way, *flow.waiting):
                self._row(model, cohort)
            flow.under_way.clear()
            flow.waiting.clear()

    def _row(self, model: str, cohort: Cohort) -> None:
        batch = cohort.batch
        tokens = batch.output_tokens * cohort.attained / max(1, batch.taken)
        self.rows.append(
            FlowRow(model, cohort.at_s, batch.requests, cohort.served, cohort.attained, tokens)
        )

    def _who_serves(self, model: str) -> _Serving:
        routes = self._routes.get(model)
        found = _Serving()
        for group in routes.groups if routes else ():
            decode = self._alive(group.decode)
            whole, prefill = self._alive(group.aggregated), self._alive(group.prefill)
            if whole:
                found.add(group, whole, [])
            elif prefill and decode:
                found.add(group, prefill, decode)
        return found

    def _alive(self, ends: Iterable[Endpoint]) -> list[FlowEngine]:
        found = (self._engines.get(end.address) for end in ends)
        return [one for one in found if isinstance(one, FlowEngine)]

    def _ways_of(self, model: str, lengths: Lengths) -> list[Way]:
        kinds = self._serving[model].kinds
        key = [(kind, count) for kind, (_, count) in kinds.items()], lengths
        known = self._ways.get(model)
        if known is not None and known[0] == key:
            return known[1]
        count = sum(count for _, count in kinds.values())
        cv = max(0.05, 2.0 ** (-0.5 * round(math.log2(max(1, count)))))
        made = []
        for (setup, behind, decodes, weight), count in kinds.values():
            phase = Phase.PREFILL if behind else Phase.AGGREGATED
            each = pace((setup, phase), (behind, decodes) if behind else None, lengths, cv)
            made.append(Way(count * weight, count, each, self._random))
        self._ways[model] = key, made
        return made


class FlowWorld(World):
    """One run; `run` once."""

    def __init__(self, scenario: Scenario, decider: Decider, plan: Plan = plan_in_process) -> None:
        parts = [service.model for service in scenario.cluster.services if service.graph]
        parts += [route.name for route in scenario.cluster.routes]
        if parts:
            allowed = "single models without components, where rates are simulated"
            raise InvalidValue("models", ", ".join(parts), allowed)
        super().__init__(scenario, decider, plan)
        random = np.random.default_rng(scenario.seed)
        inflows = {}
        for service in self.cluster.services:
            mine = [arrival for arrival in scenario.arrivals if arrival.model == service.model]
            if mine:
                inflows[service.model] = Inflow(
                    mine, service.max_len_tokens, scenario.weight, random
                )
        self.gateway = FlowGateway(
            self.cluster,
            inflows,
            self.agenda,
            self.engines,
            scenario.limits,
            scenario.lead_s,
            random.spawn(1)[0],
        )
        self.gateways = (self.gateway,)
        self._last_s = 0
        self._next_s = 0
        self._changed = False
        self._moved = True  # since it was looked who serves
        self._idle: dict[str, Status] = {}  # the last words of nodes on which nothing runs

    def engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """A process that answers."""
        if not isinstance(setup, EngineSetup):
            raise InvalidValue("model", setup, "one without components")
        return FlowEngine(setup, self.agenda, address)

    def tell(self, status: Status) -> None:
        """A node says how it is; a change of state is looked at within a second."""
        known = self.statuses.get(status.node)
        super().tell(status)
        if status.instances:
            self._idle.pop(status.node, None)
        else:
            self._idle[status.node] = status
        was = {one.instance: one.state for one in known.instances} if known else {}
        now = {one.instance: one.state for one in status.instances}
        self._moved |= known is None or was != now
        if known is None or any(s in _CALLS and was.get(one) != s for one, s in now.items()):
            self._tick_at(math.floor(self.agenda.now_ms / 1000.0) + 1)

    def _beat(self) -> None:
        # Hundreds of nodes are as they were at each tick, and nobody looks back: what they said is
        # dated anew.
        at_ms = self.epoch_ms(self.agenda.now_ms)
        for status in self._idle.values():
            date(status, at_ms)
        for name, node in self.nodes.items():
            if name not in self._idle and node.due_ms <= self.agenda.now_ms:
                node.heartbeat(at_ms)

    def finish(self) -> Timeline:
        """As of `World`; what is under way may end."""
        now_s = self.agenda.now_ms / 1000.0
        self.gateway.look()
        if now_s > self._last_s:
            self.gateway.flow(self._last_s, now_s)
        found = super().finish()
        until_s = now_s + _SETTLE_S
        while self.gateway.busy and now_s < until_s:
            self.gateway.flow(now_s, now_s + QUIET_S, open_=False)
            now_s += QUIET_S
        self.gateway.settle(now_s)
        found.flows = sorted(self.gateway.rows, key=lambda row: (row.arrival_s, row.model))
        return found

    def _clocks(self) -> None:
        self._next_s = -1
        self._tick_at(0)

    def _tick_at(self, at_s: int) -> None:
        """Tick at second `at_s`, unless one comes before."""
        if self._last_s < at_s and self._last_s < self._next_s <= at_s:
            return
        self._next_s = at_s
        self.agenda.at(1000.0 * at_s, lambda: self._come(at_s))

    def _come(self, at_s: int) -> None:
        if at_s != self._next_s:
            return  # another came before
        if self._moved:
            self._moved = False
            self.gateway.look()
        while self._last_s < at_s:
            to_s = min(at_s, (self._last_s // QUIET_S + 1) * QUIET_S)
            self.gateway.flow(self._last_s, to_s)
            self._report(1000.0 * to_s, 1000 * (to_s - self._last_s))
            self._last_s = to_s
        self.gateway.load(at_s)
        self._beat()
        self._changed = False
        self._decide()
        self._tick_at(at_s + 1 if self._changed else self._quiet_until(at_s))

    def _quiet_until(self, at_s: int) -> int:
        """When to look again where nothing changes by then but, perhaps, rates."""
        quiet_s = (at_s + QUIET_S) // QUIET_S * QUIET_S
        usual = self.gateway.is_usual
        longest_s = FEW_LONGEST_S if self.gateway.has_few(at_s, quiet_s) else LONGEST_S
        while (
            (next_s := quiet_s + QUIET_S) <= at_s + longest_s
            and usual(quiet_s, next_s)
            and usual(at_s, next_s)
        ):
            quiet_s = next_s
        return quiet_s

    def _happen(self, event: Happening) -> None:
        super()._happen(event)
        self._moved = True
        if isinstance(event, NodeLost):
            self._idle.pop(event.node, None)
        self._tick_at(math.floor(self.agenda.now_ms / 1000.0) + 1)

    def _answer(self) -> None:
        # A tick with what flowed until then: telemetry that is seconds old forbids every removal.
        if self.solver.is_due(self.agenda.now_ms):
            self._tick_at(math.ceil(self.agenda.now_ms / 1000.0))

    def _carry_out(self, said: Said) -> None:
        super()._carry_out(said)
        if said.routes:
            self._changed = True
            self._tick_at(math.floor(self.agenda.now_ms / 1000.0) + 1)

    def _reach(self, said: Said) -> None:
        super()._reach(said)
        self._moved = True
