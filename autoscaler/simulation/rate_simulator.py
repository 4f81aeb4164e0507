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
from bisect import bisect_right
from collections.abc import Iterable

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.simulation.arrival_flow import ArrivalFlow
from autoscaler.simulation.component_stage import AnyEngine, AnySetup
from autoscaler.simulation.decider import Decider, DeciderOutput
from autoscaler.simulation.flow_engine import FlowEngine
from autoscaler.simulation.flow_gateway import FlowGateway
from autoscaler.simulation.scenario import Scenario
from autoscaler.simulation.simulator import Simulator
from autoscaler.simulation.status_copies import set_reported_ms
from autoscaler.simulation.supply_script import NodeLost, ScriptEvent
from autoscaler.simulation.timeline import Timeline
from autoscaler.simulation.virtual_planner import PlanFunction, plan_in_process
from topics.fleet import InstanceState, Status

QUIET_STEP_S, MAX_STEP_FEW_S, MAX_STEP_S = 10, 30, 90
"""Seconds between ticks while no instance changes: step if rates or lengths change, longest step
for few requests if they do not, and longest step for many requests."""
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
    scenario: Scenario,
    decider: Decider,
    plan: PlanFunction = plan_in_process,
    tick_s: int | None = None,
    also_s: Iterable[int] = (),
) -> Timeline:
    """Run `scenario` under `decider` with rates instead of requests. `Timeline.flows` holds the
    result. tick_s, also_s: as in `RateSimulator`."""
    return RateSimulator(scenario, decider, plan, tick_s, also_s).run()


class RateSimulator(Simulator):
    """One run; call `run` once.

    tick_s: the period of a decider that needs regular ticks. None = the decider measures elapsed
    time, so it can tick as rarely as the module docstring says. also_s: seconds with a tick in any
    case.
    """

    def __init__(
        self,
        scenario: Scenario,
        decider: Decider,
        plan: PlanFunction = plan_in_process,
        tick_s: int | None = None,
        also_s: Iterable[int] = (),
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
                    mine, service.max_len_tokens, scenario.weight_of(service.model), random
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
        self._tick_s = tick_s
        self._also_s = sorted(set(also_s))
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
        self.gateway.drop_unfinished()
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
        self.gateway.load()
        self._send_heartbeats()
        self._tick_next_second = False
        self._decide()
        self._schedule_tick(at_s + 1 if self._tick_next_second else self._next_quiet_tick(at_s))

    def _next_quiet_tick(self, at_s: int) -> int:
        """Second of the next tick if nothing but rates changes until then."""
        after = bisect_right(self._also_s, at_s)
        return min([self._next_needed_tick(at_s), *self._also_s[after : after + 1]])

    def _next_needed_tick(self, at_s: int) -> int:
        if self._tick_s is not None:
            return (at_s // self._tick_s + 1) * self._tick_s
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
