"""Runs a scenario under a decider in virtual time: gateways, engines, nodes and feeds.

At each full second the gateways report the last second and the decider ticks. The decider also
ticks when a planner answer arrives. Its records reach nodes and gateways `CONTROL_DELAY_MS` later.
The result is deterministic: no clock, no randomness. `run_measures` and `policy_score`
evaluate the resulting timeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np

from autoscaler.domain.node_names import node_ids
from autoscaler.domain.validation import InvalidValue
from autoscaler.estimate.windows import TelemetryWindows
from autoscaler.serving.billing import Bill
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.component_stage import AnyEngine, AnySetup, engine_on
from autoscaler.simulation.decider import Decider, DeciderInput, DeciderOutput
from autoscaler.simulation.engine_setups import EngineSetups
from autoscaler.simulation.event_queue import EventQueue
from autoscaler.simulation.gateway_process import GATEWAY_CHECK_MS, SimGateway
from autoscaler.simulation.instance_spans import InstanceSpans
from autoscaler.simulation.node_process import HEARTBEAT_MS, SimNode
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.session_order import SessionOrder
from autoscaler.simulation.simulated_request import Call
from autoscaler.simulation.status_copies import set_reported_ms
from autoscaler.simulation.supply_feeds import SupplyFeeds
from autoscaler.simulation.supply_script import (
    AlertRaised,
    AvailabilityChanged,
    GatewaySilent,
    LaunchesFail,
    NodeLost,
    NodeReturned,
    NodesLimited,
    NodesLost,
    PlannerDown,
    PriceChanged,
    ScriptEvent,
    ServiceChanged,
)
from autoscaler.simulation.timeline import OrderedFleet, Timeline, active_group_counts
from autoscaler.simulation.virtual_planner import PlanFunction, VirtualPlanner, plan_in_process
from topics.alerts import Alert
from topics.fleet import Assignment, DesiredInstance, Status
from topics.routing import Routes
from topics.telemetry_columns import TelemetryBatch

ORIGIN_MS = 1_700_000_000_000
"""Second 0 of a simulation, in ms since the epoch."""
CONTROL_DELAY_MS = 100.0
"""Delay from a decision until nodes and gateways apply it."""
_TICK_MS = 1_000
_FEEDS_EVERY_MS = 600_000
_DRAIN_S = 600.0
_NODE_RETURN_S = 300.0


def simulate(
    scenario: Scenario, decider: Decider, plan: PlanFunction = plan_in_process
) -> Timeline:
    """Run `scenario` under `decider`. plan: the function that answers the decider's plan
    requests."""
    return Simulator(scenario, decider, plan).run()


class Gateway(Protocol):
    """Interface of a gateway to the control plane."""

    def apply(self, routes: Routes) -> None:
        """Use `routes` from now on."""
        ...

    def report(self, end_ms: int, span_ms: int) -> TelemetryBatch:
        """One telemetry record per model for the last span_ms. end_ms: now, in ms since the
        epoch."""
        ...


class Simulator:
    """One run; call `run` once, or `advance` and then `finish`. Tests read the public fields."""

    def __init__(
        self, scenario: Scenario, decider: Decider, plan: PlanFunction = plan_in_process
    ) -> None:
        self.scenario = scenario
        self.cluster = scenario.cluster
        self.events = EventQueue()
        self.engines: dict[str, AnyEngine] = {}
        self.windows = TelemetryWindows()
        self.planner = VirtualPlanner(scenario.solve, plan)
        self.statuses: dict[str, Status] = {}
        self.assignments: dict[str, Assignment] = {}
        self.routes: dict[str, Routes] = {}
        self.timeline = Timeline(ORIGIN_MS)
        self._decider = decider
        self._alerts: list[Alert] = []
        self._reclaimed: set[str] = set()
        self._failing_until_s: dict[str, float] = {}
        self._silent_until_s: dict[int, float] = {}
        self._setups = EngineSetups()
        self._pending = 0
        self._sessions = SessionOrder(scenario.arrivals)
        self._feed_period = -1.0  # number of the last period in which the feeds were refreshed
        self._started = False
        self._bill = Bill({p.id: p.price_usd_per_h for p in self.cluster.pools}, ORIGIN_MS)
        self._feeds = SupplyFeeds(self._bill)
        self._spans = InstanceSpans()
        longest = {s.model: s.max_len_tokens for s in self.cluster.services}
        longest |= {r.name: min(longest[m] for m in r.models) for r in self.cluster.routes}
        self._sim_gateways = [
            SimGateway(
                f"gateway-{n}", longest, self.events, self.engines, self._on_ended, scenario.limits
            )
            for n in range(scenario.gateways)
        ]
        self.gateways: Sequence[Gateway] = self._sim_gateways
        self.nodes: dict[str, SimNode] = {}
        for pool in self.cluster.pools:
            for name in node_ids(pool):
                self.nodes[name] = SimNode(name, pool.id, pool.per_node, self)

    def run(self) -> Timeline:
        """Run to the end of the scenario and return the timeline."""
        self.advance(self.scenario.end_s)
        return self.finish()

    def advance(self, to_s: float) -> None:
        """Run until second `to_s`, but not beyond the end of the scenario."""
        if not self._started:
            self._start()
        self.events.run(1000.0 * min(to_s, self.scenario.end_s))

    def finish(self) -> Timeline:
        """Close the bill now, let pending requests end (for at most 10 min), and write the rows."""
        end_ms = self.events.now_ms
        self.timeline.nodes = self._bill.until(end_ms / 1000.0)
        self.timeline.instances = self._spans.until(end_ms / 1000.0)
        while self._pending and self.events.now_ms < end_ms + 1000.0 * _DRAIN_S:
            self.events.run(self.events.now_ms + 1000.0)
        self.timeline.finish()
        return self.timeline

    def _start(self) -> None:
        self._started = True
        for event in sorted(self.scenario.script, key=lambda e: e.at_s):
            self._apply_at(event)
        self._start_clocks()

    def _start_clocks(self) -> None:
        """Schedule the periodic actions and the first arrival."""
        self.events.every(HEARTBEAT_MS, self._send_heartbeats)
        self.events.every(GATEWAY_CHECK_MS, self._check_gateways)
        self.events.every(_TICK_MS, self._tick)
        self._pending = len(self.scenario.arrivals)
        self._schedule_arrival(0)

    # -- the environment of the nodes ---------------------------------------------------------

    def epoch_ms(self, at_ms: float) -> int:
        """`at_ms` of the event queue, converted to domain ms since the epoch."""
        return ORIGIN_MS + int(at_ms)

    def engine_setup(self, node: SimNode, desired: DesiredInstance) -> AnySetup:
        """The setup of the engine for `desired` on `node`. Raises InvalidValue if it cannot run
        there."""
        if max(desired.gpus) >= node.gpus:
            raise InvalidValue("gpus", desired.gpus, f"0 to {node.gpus - 1} on {node.name}")
        setup = self._setups.setup(self.cluster, self.cluster.pool(node.pool), desired)
        block_tokens = self.scenario.block_tokens.get(desired.model, 0)
        if block_tokens and isinstance(setup, EngineSetup):
            limits = replace(setup.limits, block_tokens=block_tokens)
            return replace(setup, limits=limits)
        return setup

    def start_engine(self, setup: AnySetup, address: str) -> AnyEngine:
        """Start an engine process that answers at `address`."""
        return engine_on(setup, self.events, address)

    def provision_s(self, node: SimNode) -> float:
        """Seconds from renting the node until it can start an engine."""
        return self.cluster.pool(node.pool).provision_s

    def unavailable_reason(self, node: SimNode) -> str:
        """Why no node of the pool can be rented now; "" if a node can be rented."""
        if self._bill.is_billed(node.name) or not self._feeds.is_exhausted(node.pool):
            return ""
        return f"{node.pool}: no node available"

    def launch_fault(self, node: SimNode) -> str:
        """Why a process launched on `node` now will exit; "" if it will run."""
        now_s = self.events.now_ms / 1000.0
        for where in (node.name, node.pool):
            if now_s < self._failing_until_s.get(where, 0.0):
                return f"the process ended: {where} is faulty"
        return ""

    def count_launch(self) -> None:
        """Count one started process."""
        self.timeline.launches += 1

    def fail_gangs(self, gangs: frozenset[str]) -> None:
        """Inform the other nodes that a rank of each of these gangs is lost."""
        for node in self.nodes.values():
            if gangs and node.up:
                node.fail_ranks(gangs)

    def report_status(self, status: Status) -> None:
        """Publish `status` of a node."""
        self.statuses[status.node] = status
        self._bill.record(status)
        self._spans.record(status, self.events.now_ms / 1000.0)

    def report_unchanged(self, status: Status, at_ms: int) -> None:
        """Publish `status` of a node again, at `at_ms`. The record is changed in place, because no
        copy of it is kept."""
        set_reported_ms(status, at_ms)
        self.statuses[status.node] = status
        self._bill.record_unchanged(status.node, at_ms)

    # -- one tick -----------------------------------------------------------------------------

    def _tick(self) -> None:
        self._report(self.events.now_ms, _TICK_MS)
        self._decide()

    def _report(self, at_ms: float, span_ms: int) -> None:
        """Gateways report the last `span_ms`, which ended at `at_ms`."""
        end_ms = self.epoch_ms(at_ms)
        self.windows.advance(end_ms)
        for index, gateway in enumerate(self.gateways):
            records = gateway.report(end_ms, span_ms)
            if at_ms / 1000.0 > self._silent_until_s.get(index, -1.0):
                self.windows.add_all(records, np.full(len(records), end_ms))

    def _decide(self) -> None:
        """Run one tick. Ticks take place at each full second, and in between when a planner answer
        arrives."""
        now_ms = self.events.now_ms
        if now_ms // _FEEDS_EVERY_MS != self._feed_period:
            self._feed_period = now_ms // _FEEDS_EVERY_MS
            self._feeds.refresh(self.epoch_ms(now_ms))
        answers = self.planner.take_answers(now_ms)
        self.timeline.plan_answers.extend((now_ms / 1000.0, answer) for answer in answers)
        alerts, self._alerts = tuple(self._alerts), []
        output = self._decider.decide(
            DeciderInput(
                self.cluster,
                self.windows,
                dict(self.statuses),
                dict(self._feeds.availability),
                dict(self._feeds.prices),
                answers,
                alerts,
            ),
            self.epoch_ms(now_ms),
        )
        self._apply_output(output)

    def _on_answer(self) -> None:
        # if not, a tick at the same time has already taken the answer
        if self.planner.is_due(self.events.now_ms):
            self._decide()

    def _apply_output(self, output: DeciderOutput) -> None:
        events = self.events
        now_s = events.now_ms / 1000.0
        for request in output.requests:
            self.timeline.plan_requests.append((now_s, request))
            due_ms = self.planner.submit(request, self.cluster, events.now_ms)
            events.at(due_ms, self._on_answer)
        if output.assignments:
            self.assignments.update({record.node: record for record in output.assignments})
            self.timeline.ordered.append(
                OrderedFleet(now_s, active_group_counts(self.assignments.values()))
            )
        if output.planned:
            self.timeline.planned.append((now_s, output.planned))
        self.timeline.decisions.extend(output.decisions)
        self.timeline.plans.extend(output.plans)
        if output.assignments or output.routes:
            events.at(events.now_ms + CONTROL_DELAY_MS, lambda: self._deliver(output))

    def _deliver(self, output: DeciderOutput) -> None:
        for assignment in output.assignments:
            node = self.nodes.get(assignment.node)
            if node is not None:
                node.accept(assignment)
        for routes in output.routes:
            self.routes[routes.model] = routes
            for gateway in self.gateways:
                gateway.apply(routes)

    def _send_heartbeats(self) -> None:
        now_ms = self.events.now_ms
        at_ms = self.epoch_ms(now_ms)
        for node in self.nodes.values():
            if node.due_ms <= now_ms:
                node.heartbeat(at_ms)

    def _check_gateways(self) -> None:
        for gateway in self._sim_gateways:
            gateway.check_waiting()

    # -- requests -----------------------------------------------------------------------------

    def _schedule_arrival(self, index: int) -> None:
        """Schedule the next arrival, from number `index` on, that does not wait for an earlier
        turn. Its action schedules the one after it.
        """
        while self._sessions.waits(index):
            index += 1
        if index >= len(self.scenario.arrivals):
            return
        at_ms = 1000.0 * (self.scenario.lead_s + self.scenario.arrivals[index].at_s)

        def come() -> None:
            self._schedule_arrival(index + 1)
            self._receive(index, at_ms)

        self.events.at(at_ms, come)

    def _receive(self, index: int, at_ms: float) -> None:
        arrival = self.scenario.arrivals[index]
        call = Call(index, arrival.model, at_ms, arrival.input_tokens, arrival.output_tokens,
                    media=arrival.media, score=arrival.score, blocks=arrival.blocks)  # fmt: skip
        self.timeline.calls.append(call)
        self._sim_gateways[index % len(self._sim_gateways)].receive(call)

    def _on_ended(self, call: Call) -> None:
        self._pending -= 1
        index = self._sessions.next_turn(call.id)
        if index is None:
            return
        arrival = self.scenario.arrivals[index]
        # Engines report the end of a request early, at the begin of its last iteration.
        ended_ms = max(self.events.now_ms, call.end_ms or 0.0)
        at_ms = max(ended_ms, 1000.0 * (self.scenario.lead_s + arrival.at_s))
        if arrival.delay_s is not None:
            at_ms = ended_ms + 1000.0 * arrival.delay_s
        if at_ms < 1000.0 * self.scenario.end_s:
            self.events.at(at_ms, partial(self._receive, index, at_ms))
        else:
            self._pending -= self._sessions.turns_left(index)

    # -- the script ---------------------------------------------------------------------------

    def _limit_nodes(self, pool: str, nodes: int, notice_s: float) -> None:
        """Reclaim the newest nodes above the number `nodes`. A reclaimed machine is empty
        `_NODE_RETURN_S` later, and can be rented when the pool is below its limit."""
        rented = [name for name in self._bill.newest(pool) if name not in self._reclaimed]
        for name in rented[: max(0, len(rented) - nodes)]:
            self._reclaimed.add(name)
            taken_ms = self.events.now_ms + 1000.0 * notice_s
            self.nodes[name].reclaim(taken_ms)
            self._apply_at(NodeLost(taken_ms / 1000.0, name))
            self._apply_at(NodeReturned(taken_ms / 1000.0 + _NODE_RETURN_S, name))
        self._feeds.set_limit(pool, nodes, self.epoch_ms(self.events.now_ms))

    def _apply_at(self, event: ScriptEvent) -> None:
        self.events.at(1000.0 * event.at_s, partial(self._apply_event, event))

    def _apply_event(self, event: ScriptEvent) -> None:
        now_ms = self.epoch_ms(self.events.now_ms)
        now_s = (now_ms - ORIGIN_MS) / 1000.0  # rounded to whole ms, as in statuses
        match event:
            case PriceChanged(_, pool, usd):
                self._bill.reprice(pool, usd, now_s)
                self._feeds.set_price(pool, usd, now_ms)
            case AvailabilityChanged(_, pool, nodes):
                self._feeds.set_free(pool, nodes, now_ms)
            case NodesLimited(_, pool, nodes, notice_s):
                self._limit_nodes(pool, nodes, notice_s)
            case NodeLost(_, name):
                self.nodes[name].lose()
                self._bill.end_node(name, now_s)
                self._spans.lose(name, now_s)
                self._reclaimed.discard(name)
            case NodesLost(_, pool, nodes, until_s):
                for name in self._feeds.in_use(self.cluster.pool(pool))[:nodes]:
                    self._apply_event(NodeLost(now_s, name))
                    if until_s < self.scenario.end_s:
                        self._apply_at(NodeReturned(until_s, name))
            case NodeReturned(_, name):
                self.nodes[name].restore()
                if name in self.assignments:
                    self.nodes[name].accept(self.assignments[name])
            case LaunchesFail(_, where, until_s):
                self._failing_until_s[where] = until_s
            case ServiceChanged(_, service):
                others = [s if s.model != service.model else service for s in self.cluster.services]
                self.cluster = replace(self.cluster, services=tuple(others))
            case AlertRaised(_, alert):
                self._alerts.append(alert)
            case GatewaySilent(_, index, until_s):
                self._silent_until_s[index] = until_s
            case PlannerDown(_, until_s):
                self.planner.down_until_ms = 1000.0 * until_s
