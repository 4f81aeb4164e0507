"""The world of a simulation: gateways, engines, nodes and feeds around a decider, in virtual time.

Owns the order of things within a second and what is written down. At each full second gateways
report what they saw of it, then the decider ticks; it also ticks when an answer of the planner
comes. Its records reach nodes and gateways `CONTROL_MS` later. Deterministic: no clock, no
randomness. It must not know how anything is decided or judged (`measures`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from autoscaler.domain.node_names import node_ids
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.performance.pipeline import PipelineSlices
from autoscaler.performance.profile_sources import profile_of
from autoscaler.planning.links import link_gb_s
from autoscaler.serving.billing import Bill
from autoscaler.serving.engine_setup import EngineSetup, setup_on
from autoscaler.simulation.component_stage import AnyEngine, AnySetup, engine_on, stage_setup
from autoscaler.simulation.decider import Decider, Said, Seen
from autoscaler.simulation.event_queue import Agenda
from autoscaler.simulation.gateway_process import LOOK_MS, SimGateway
from autoscaler.simulation.node_process import HEARTBEAT_MS, SimNode
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulated_request import Call
from autoscaler.simulation.status_copies import date
from autoscaler.simulation.supply_script import (
    AlertRaised,
    AvailabilityChanged,
    GatewaySilent,
    Happening,
    LaunchesFail,
    NodeBack,
    NodeLost,
    NodesLimited,
    PriceChanged,
    ServiceChanged,
    SolverAway,
)
from autoscaler.simulation.timeline import Ordered, Timeline, ordered_counts
from autoscaler.simulation.turns import Turns
from autoscaler.simulation.virtual_planner import Plan, SimSolver, plan_in_process
from topics.alerts import Alert
from topics.fleet import Assignment, DesiredInstance, Status
from topics.routing import Routes
from topics.supply import Availability, Price
from topics.telemetry_columns import Reported

ORIGIN_MS = 1_700_000_000_000
"""Second 0 of a simulation, in ms since the epoch."""
CONTROL_MS = 100.0
"""From a decision to the nodes and gateways that it reaches."""
_TICK_MS = 1_000
_FEEDS_EVERY_MS = 600_000
_DRAIN_S = 600.0
_BACK_S = 300.0


def simulate(scenario: Scenario, decider: Decider, plan: Plan = plan_in_process) -> Timeline:
    """Run `scenario` under `decider`. plan: who answers its questions to the planner."""
    return World(scenario, decider, plan).run()


class Gateway(Protocol):
    """What the control plane sees of a gateway."""

    def apply(self, routes: Routes) -> None:
        """Go by `routes` from now on."""
        ...

    def report(self, end_ms: int, span_ms: int) -> Reported:
        """What it saw in the span that ends now, in ms since the epoch; one record per model."""
        ...


class World:
    """One run; `run` once. What stands here in public is what tests look at in between."""

    def __init__(self, scenario: Scenario, decider: Decider, plan: Plan = plan_in_process) -> None:
        self.scenario = scenario
        self.cluster = scenario.cluster
        self.agenda = Agenda()
        self.engines: dict[str, AnyEngine] = {}
        self.windows = TelemetryWindows()
        self.solver = SimSolver(scenario.solve, plan)
        self.statuses: dict[str, Status] = {}
        self.assignments: dict[str, Assignment] = {}
        self.routes: dict[str, Routes] = {}
        self.timeline = Timeline(ORIGIN_MS)
        self._decider = decider
        self._availability: dict[str, Availability] = {}
        self._prices: dict[str, Price] = {}
        self._obtainable: dict[str, int] = {}
        self._alerts: list[Alert] = []
        self._reclaimed: set[str] = set()
        self._failing: dict[str, float] = {}
        self._silent: dict[int, float] = {}
        self._setups: dict[tuple[object, ...], EngineSetup] = {}
        self._pending = 0
        self._turns = Turns(scenario.arrivals)
        self._fed = -1.0  # the period in which feeds spoke last
        self._started = False
        self._bill = Bill({p.id: p.price_usd_per_h for p in self.cluster.pools}, ORIGIN_MS)
        longest = {s.model: s.max_len_tokens for s in self.cluster.services}
        longest |= {r.name: min(longest[m] for m in r.models) for r in self.cluster.routes}
        self._takers = [
            SimGateway(
                f"gateway-{n}", longest, self.agenda, self.engines, self._ended, scenario.limits
            )
            for n in range(scenario.gateways)
        ]
        self.gateways: Sequence[Gateway] = self._takers
        self.nodes: dict[str, SimNode] = {}
        for pool in self.cluster.pools:
            for name in node_ids(pool):
                self.nodes[name] = SimNode(name, pool.id, pool.per_node, self)

    def run(self) -> Timeline:
        """Everything, to the end; the timeline of what happened."""
        self.advance(self.scenario.end_s)
        return self.finish()

    def advance(self, to_s: float) -> None:
        """Go on until `to_s`, at most to the end of the scenario."""
        if not self._started:
            self._start()
        self.agenda.run(1000.0 * min(to_s, self.scenario.end_s))

    def finish(self) -> Timeline:
        """Close the bill now, let requests under way end, and write the rows."""
        end_ms = self.agenda.now_ms
        self._bill.close(end_ms / 1000.0)
        self.timeline.nodes = list(self._bill.spans)
        while self._pending and self.agenda.now_ms < end_ms + 1000.0 * _DRAIN_S:
            self.agenda.run(self.agenda.now_ms + 1000.0)
        self.timeline.finish()
        return self.timeline

    def _start(self) -> None:
        self._started = True
        for event in sorted(self.scenario.script, key=lambda e: e.at_s):
            self.agenda.at(1000.0 * event.at_s, partial(self._happen, event))
        self._clocks()

    def _clocks(self) -> None:
        """Note what comes again and again, and the first arrival."""
        self.agenda.every(HEARTBEAT_MS, self._beat)
        self.agenda.every(LOOK_MS, self._look)
        self.agenda.every(_TICK_MS, self._tick)
        self._pending = len(self.scenario.arrivals)
        self._arrive(0)

    # -- what nodes stand on ------------------------------------------------------------------

    def epoch_ms(self, at_ms: float) -> int:
        """Domain ms since the epoch."""
        return ORIGIN_MS + int(at_ms)

    def setup(self, node: SimNode, desired: DesiredInstance) -> AnySetup:
        """The engine for `desired` on `node`; InvalidValue where it cannot run."""
        if max(desired.gpus) >= node.gpus:
            raise InvalidValue("gpus", desired.gpus, f"0 to {node.gpus - 1} on {node.name}")
        service = self.cluster.service(desired.model)
        pool = self.cluster.pool(node.pool)
        if service.graph is not None:
            return stage_setup(service.graph, service, pool, desired)
        spec = service.architecture
        longest = min(service.max_len_tokens, spec.max_position)
        place: NodeSlice | PipelineSlices = NodeSlice(pool.gpu, len(desired.gpus))
        if desired.gang is not None:
            gpus = {pool.gpu.name: pool.gpu for pool in self.cluster.pools}
            stages = ((NodeSlice(gpus[s.gpu], s.gpus), s.layers) for s in desired.gang.stages)
            place = PipelineSlices(tuple(stages), longest)
        over_gb_s = link_gb_s(pool, pool)
        key = spec, place, desired.phase, longest, over_gb_s
        found = self._setups.get(key)
        if found is None:
            profile = profile_of(self.cluster)
            found = setup_on(spec, place, Phase(desired.phase), longest, profile)
            found = self._setups[key] = replace(found, kv_gb_s=over_gb_s)
        return found

    def engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """A process that answers."""
        return engine_on(setup, self.agenda, address)

    def provision_s(self, node: SimNode) -> float:
        """How long it takes until a machine that is asked for is there."""
        return self.cluster.pool(node.pool).provision_s

    def no_node(self, node: SimNode) -> str:
        """Why the machine cannot be had now, "" if it can."""
        limit = self._obtainable.get(node.pool)
        if limit is None or self._bill.is_billed(node.name):
            return ""
        return f"{node.pool}: no node to be had" if self._bill.billed(node.pool) >= limit else ""

    def launch_fault(self, node: SimNode) -> str:
        """Why a process that is launched on `node` now will end, "" if it will not."""
        now_s = self.agenda.now_ms / 1000.0
        for where in (node.name, node.pool):
            if now_s < self._failing.get(where, 0.0):
                return f"the process ended: {where} is faulty"
        return ""

    def launched(self) -> None:
        """A process was started."""
        self.timeline.launches += 1

    def lost(self, gangs: frozenset[str]) -> None:
        """Ranks of these gangs are gone with their node."""
        for node in self.nodes.values():
            if gangs and node.up:
                node.lose_gangs(gangs)

    def tell(self, status: Status) -> None:
        """A node says how it is."""
        self.statuses[status.node] = status
        self._bill.record(status)

    def still(self, status: Status, at_ms: int) -> None:
        """A node says that it is as it was. Its last word is dated anew: nobody keeps it."""
        date(status, at_ms)
        self.statuses[status.node] = status

    # -- the second ---------------------------------------------------------------------------

    def _tick(self) -> None:
        self._report(self.agenda.now_ms, _TICK_MS)
        self._decide()

    def _report(self, at_ms: float, span_ms: int) -> None:
        """Gateways say what they saw of the span that ended at `at_ms`."""
        end_ms = self.epoch_ms(at_ms)
        self.windows.advance(end_ms)
        for index, gateway in enumerate(self.gateways):
            records = gateway.report(end_ms, span_ms)
            if at_ms / 1000.0 > self._silent.get(index, -1.0):
                self.windows.add_all(records, np.full(len(records), end_ms))

    def _decide(self) -> None:
        """At each full second, and when an answer of the planner comes between two."""
        now_ms = self.agenda.now_ms
        if now_ms // _FEEDS_EVERY_MS != self._fed:
            self._fed = now_ms // _FEEDS_EVERY_MS
            self._feeds()
        answers = self.solver.answers(now_ms)
        self.timeline.answered.extend((now_ms / 1000.0, found) for found in answers)
        alerts, self._alerts = tuple(self._alerts), []
        said = self._decider.decide(
            Seen(
                self.cluster,
                self.windows,
                dict(self.statuses),
                dict(self._availability),
                dict(self._prices),
                answers,
                alerts,
            ),
            self.epoch_ms(now_ms),
        )
        self._carry_out(said)

    def _answer(self) -> None:
        if self.solver.is_due(self.agenda.now_ms):  # no tick of this moment has taken it
            self._decide()

    def _carry_out(self, said: Said) -> None:
        agenda = self.agenda
        now_s = agenda.now_ms / 1000.0
        for request in said.requests:
            self.timeline.asked.append((now_s, request))
            due_ms = self.solver.ask(request, self.cluster, agenda.now_ms)
            agenda.at(due_ms, self._answer)
        if said.assignments:
            self.assignments.update({record.node: record for record in said.assignments})
            self.timeline.ordered.append(Ordered(now_s, ordered_counts(self.assignments.values())))
        self.timeline.decisions.extend(said.decisions)
        self.timeline.plans.extend(said.plans)
        if said.assignments or said.routes:
            agenda.at(agenda.now_ms + CONTROL_MS, lambda: self._reach(said))

    def _reach(self, said: Said) -> None:
        for assignment in said.assignments:
            node = self.nodes.get(assignment.node)
            if node is not None:
                node.accept(assignment)
        for routes in said.routes:
            self.routes[routes.model] = routes
            for gateway in self.gateways:
                gateway.apply(routes)

    def _beat(self) -> None:
        now_ms = self.agenda.now_ms
        at_ms = self.epoch_ms(now_ms)
        for node in self.nodes.values():
            if node.due_ms <= now_ms:
                node.heartbeat(at_ms)

    def _look(self) -> None:
        for gateway in self._takers:
            gateway.look()

    # -- requests -----------------------------------------------------------------------------

    def _arrive(self, index: int) -> None:
        """Note the first arrival from number `index` on that waits for no other; when it comes, it
        notes the one after it."""
        while self._turns.waits(index):
            index += 1
        if index >= len(self.scenario.arrivals):
            return
        at_ms = 1000.0 * (self.scenario.lead_s + self.scenario.arrivals[index].at_s)

        def come() -> None:
            self._arrive(index + 1)
            self._enter(index, at_ms)

        self.agenda.at(at_ms, come)

    def _enter(self, index: int, at_ms: float) -> None:
        arrival = self.scenario.arrivals[index]
        call = Call(index, arrival.model, at_ms, arrival.input_tokens, arrival.output_tokens,
                    media=arrival.media, score=arrival.score)  # fmt: skip
        self.timeline.calls.append(call)
        self._takers[index % len(self._takers)].take(call)

    def _ended(self, call: Call) -> None:
        self._pending -= 1
        index = self._turns.after(call.id)
        if index is None:
            return
        arrival = self.scenario.arrivals[index]
        # Engines report an end when they begin the iteration that brings it.
        ended_ms = max(self.agenda.now_ms, call.end_ms or 0.0)
        at_ms = max(ended_ms, 1000.0 * (self.scenario.lead_s + arrival.at_s))
        if arrival.delay_s is not None:
            at_ms = ended_ms + 1000.0 * arrival.delay_s
        if at_ms < 1000.0 * self.scenario.end_s:
            self.agenda.at(at_ms, partial(self._enter, index, at_ms))
        else:
            self._pending -= self._turns.left(index)

    # -- the script ---------------------------------------------------------------------------

    def _feeds(self) -> None:
        """Feeds that once spoke say again how things are: they are not silent."""
        now_ms = self.epoch_ms(self.agenda.now_ms)
        for pool, price in self._prices.items():
            self._prices[pool] = replace(price, observed_ms=now_ms)
        for pool in self._availability:
            left = max(0, self._obtainable[pool] - self._bill.billed(pool))
            self._availability[pool] = Availability(pool, left, now_ms)

    def _limit(self, pool: str, nodes: int, notice_s: float) -> None:
        """Take away what is held above `nodes`; a while later the empty machines are there again,
        for whoever finds the pool below its limit then."""
        agenda = self.agenda
        self._obtainable[pool] = nodes
        held = [name for name in self._bill.newest(pool) if name not in self._reclaimed]
        for name in held[: max(0, len(held) - nodes)]:
            self._reclaimed.add(name)
            taken_ms = agenda.now_ms + 1000.0 * notice_s
            self.nodes[name].reclaim(taken_ms)
            lost = NodeLost(taken_ms / 1000.0, name)
            back = NodeBack(taken_ms / 1000.0 + _BACK_S, name)
            agenda.at(taken_ms, partial(self._happen, lost))
            agenda.at(1000.0 * back.at_s, partial(self._happen, back))
        left = max(0, nodes - self._bill.billed(pool))
        self._availability[pool] = Availability(pool, left, self.epoch_ms(agenda.now_ms))

    def _happen(self, event: Happening) -> None:
        now_ms = self.epoch_ms(self.agenda.now_ms)
        now_s = (now_ms - ORIGIN_MS) / 1000.0  # whole ms, as in statuses
        match event:
            case PriceChanged(_, pool, usd):
                self._bill.reprice(pool, usd, now_s)
                self._prices[pool] = Price(pool, usd, now_ms)
            case AvailabilityChanged(_, pool, nodes):
                self._availability[pool] = Availability(pool, nodes, now_ms)
                self._obtainable[pool] = self._bill.billed(pool) + nodes
            case NodesLimited(_, pool, nodes, notice_s):
                self._limit(pool, nodes, notice_s)
            case NodeLost(_, name):
                self.nodes[name].lose()
                self._bill.end_node(name, now_s)
                self._reclaimed.discard(name)
            case NodeBack(_, name):
                self.nodes[name].come_back()
                if name in self.assignments:
                    self.nodes[name].accept(self.assignments[name])
            case LaunchesFail(_, where, until_s):
                self._failing[where] = until_s
            case ServiceChanged(_, service):
                others = [s if s.model != service.model else service for s in self.cluster.services]
                self.cluster = replace(self.cluster, services=tuple(others))
            case AlertRaised(_, alert):
                self._alerts.append(alert)
            case GatewaySilent(_, index, until_s):
                self._silent[index] = until_s
            case SolverAway(_, until_s):
                self.solver.away_until_ms = 1000.0 * until_s
