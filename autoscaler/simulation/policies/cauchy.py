"""The autoscaler of Cauchy: Algorithm 1, with the ILP of eq. 16 as planner.

Every second and for each model, the rate of the last 2 min is compared with the capacity of the
active combos. A difference of more than 20% leads to an action, at most one in 2 min. Scale-out
solves the ILP for the deficit. If an excess has lasted 30 s, scale-in removes the combos whose
total capacity is nearest to it. After 30 min without an action, all models are planned again: new
combos start first, old ones leave afterwards. Source: Cauchy (SoCC '25), sections 3.3.2 and 3.5,
Algorithm 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.estimate.windows import NoData
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, PlanRequest, Urgency
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.simulation.baseline_fleet import BaselineFleet
from autoscaler.simulation.decider import DeciderInput, DeciderOutput
from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.policies.shoal_policy import plan_with
from autoscaler.simulation.strategies.registry import strategy

LOCAL_S, GLOBAL_S, GRACE_S = 120, 1800, 30
THRESHOLD = 0.2
_RATE_TICK_S = 10
"""Seconds between ticks if rates are simulated, equal to the period of telemetry."""


@dataclass(slots=True)
class _Model:
    """The state of one model.

    acted_s: time of the last action. over_s: begin of the present excess, None without an excess.
    """

    acted_s: float = -1e9
    over_s: float | None = None
    arrived: bool = False


class CauchyLoop:
    """Algorithm 1 as a decider. lengths: per model, for the planner."""

    def __init__(self, cluster: Cluster, lengths: Mapping[str, Lengths]) -> None:
        self._fleet = BaselineFleet(cluster, lengths)
        self._lengths = lengths
        self._models = {service.model: _Model() for service in cluster.services}
        self._combos: dict[str, Combo] = {}
        self._number = 0
        self._scope_by_request: dict[int, tuple[str, ...]] = {}
        self._retire: tuple[str, ...] = ()  # groups to drain once `_replacements` are ready
        self._replacements: tuple[str, ...] = ()
        self._stable_s = 0.0

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """The output of one tick. now_ms: domain time in ms."""
        fleet, now_s = self._fleet, now_ms / 1000.0
        fleet.observe(inputs, now_ms)
        self._stable_s = self._stable_s or now_s
        for answer in inputs.answers:
            self._apply_answer(answer, inputs, now_ms)
        self._retire_replaced(now_ms)
        asks: list[PlanRequest] = []
        if not self._scope_by_request:
            services = inputs.cluster.services
            short = [s.model for s in services if self._needs_scale_out(inputs, s, now_ms)]
            asks = [self._ask(inputs, (model,), Urgency.URGENT, now_ms) for model in short]
            if not asks and now_s - self._stable_s >= GLOBAL_S:
                self._stable_s = now_s
                scope = tuple(service.model for service in inputs.cluster.services)
                asks.append(self._ask(inputs, scope, Urgency.FULL, now_ms))
        return replace(fleet.output(inputs.cluster, now_ms), requests=tuple(asks))

    def _needs_scale_out(self, inputs: DeciderInput, service: Service, now_ms: int) -> bool:
        """Whether Algorithm 1 demands a scale-out of one model. If it demands a scale-in, this call
        performs it."""
        state, now_s = self._models[service.model], now_ms / 1000.0
        groups = self._fleet.active_groups(service.model)
        capacity = service.utilization * sum(self._combos[g.combo_id].req_per_s for g in groups)
        excess = capacity - self._rate(inputs, service, now_ms)
        if now_s - state.acted_s < LOCAL_S and groups:
            return False
        if -excess > THRESHOLD * capacity or len(groups) < service.min_instances:
            state.over_s = None
            return now_s - state.acted_s >= LOCAL_S
        if excess <= THRESHOLD * capacity:
            state.over_s = None
            return False
        state.over_s = state.over_s or now_s
        if now_s - state.over_s >= GRACE_S:
            self._remove(service, groups, excess, now_ms)
        return False

    def _rate(self, inputs: DeciderInput, service: Service, now_ms: int) -> float:
        """The rate of the last 2 min in requests/s; the declared rate until requests have
        arrived."""
        state = self._models[service.model]
        window = inputs.windows.stats(service.model, now_ms, LOCAL_S)
        if isinstance(window, NoData) or (not state.arrived and not window.arrivals):
            return service.req_per_s
        state.arrived = True
        return window.req_per_s

    def _remove(
        self, service: Service, groups: tuple[ServingGroup, ...], excess: float, now_ms: int
    ) -> None:
        """Drain the combos whose total capacity is nearest to `excess`, the largest combos
        first."""
        left = len(groups) - max(1, service.min_instances)
        change: Counter[str] = Counter()
        for group in sorted(
            groups, key=lambda g: (-self._combos[g.combo_id].req_per_s, -g.created_ms, g.name)
        ):
            size = service.utilization * self._combos[group.combo_id].req_per_s
            if left > 0 and size <= excess and group.name not in self._replacements:
                self._fleet.drain(group, now_ms)
                change[group.combo_id] -= 1
                excess -= size
                left -= 1
        if change:
            state = self._models[service.model]
            state.acted_s, state.over_s = now_ms / 1000.0, None
            self._stable_s = now_ms / 1000.0
            self._fleet.record_decision(service.model, change, "excess", now_ms)

    def _ask(
        self, inputs: DeciderInput, scope: tuple[str, ...], urgency: Urgency, now_ms: int
    ) -> PlanRequest:
        cluster = inputs.cluster
        fleet: Counter[str] = Counter()
        for service in cluster.services:
            fleet.update(group.combo_id for group in self._fleet.active_groups(service.model))
        demands = tuple(
            Demand(s.model, self._rate(inputs, s, now_ms), self._lengths.get(s.model, s.lengths))
            for s in cluster.services
        )
        self._number += 1
        self._scope_by_request[self._number] = scope
        return PlanRequest(
            self._number, urgency, now_ms, demands, tuple(sorted(fleet.items())), scope=scope
        )

    def _apply_answer(self, answer: PlanAnswer, inputs: DeciderInput, now_ms: int) -> None:
        scope = self._scope_by_request.pop(answer.number, ())
        for model in scope:
            self._models[model].acted_s = now_ms / 1000.0
        if answer.outcome is Outcome.NONE:
            return
        self._combos.update({combo.id: combo for combo in answer.combos})
        added, gone = list[str](), list[str]()
        for model in scope:
            groups = self._fleet.active_groups(model)
            running = Counter(group.combo_id for group in groups)
            planned = {c: n for c, n in answer.counts if c.startswith(f"{model}:")}
            change: Counter[str] = Counter()
            for combo_id, count in planned.items():
                for _ in range(count - running[combo_id]):
                    if self._fleet.add(self._combos[combo_id], inputs.cluster, inputs, now_ms):
                        change[combo_id] += 1
            if answer.urgency is Urgency.FULL:
                for combo_id, count in running.items():
                    mine = [group for group in groups if group.combo_id == combo_id]
                    surplus = mine[::-1][: max(0, count - planned.get(combo_id, 0))]
                    gone += [group.name for group in surplus]
                    change[combo_id] -= len(surplus)
            new = {group.name for group in self._fleet.active_groups(model)} - {
                g.name for g in groups
            }
            added += sorted(new)
            change = Counter({combo_id: n for combo_id, n in change.items() if n})
            if change:
                self._stable_s = now_ms / 1000.0
                self._fleet.record_decision(model, change, "deficit", now_ms)
        self._retire, self._replacements = (*self._retire, *gone), (*self._replacements, *added)

    def _retire_replaced(self, now_ms: int) -> None:
        """Drain the groups that a global plan replaces, once their replacements are ready."""
        groups = {g.name: g for model in self._models for g in self._fleet.active_groups(model)}
        self._replacements = tuple(
            name
            for name in self._replacements
            if name in groups and not self._fleet.is_ready(groups[name])
        )
        if not self._replacements:
            for name in self._retire:
                if name in groups:
                    self._fleet.drain(groups[name], now_ms)
            self._retire = ()


def build(context: PolicyContext, knob: float) -> PolicyRun:
    """Algorithm 1 for every model. knob: percentile, 0 = the declared one."""
    scenario = context.scenario
    cluster = scenario.cluster
    if knob > 0.0:
        services = tuple(replace(s, percentile=knob) for s in cluster.services)
        cluster = replace(cluster, services=services)
    plan = partial(plan_with, strategy=strategy("cauchy"))
    return PolicyRun(replace(scenario, cluster=cluster), CauchyLoop(cluster, context.lengths), plan)


POLICY = Policy(
    "cauchy",
    "Cauchy's Algorithm 1 with the ILP of eq. 16, prefill-decode combos of any two GPU types",
    "planned share of requests within SLO",
    0.0,
    (0.9, 0.95, 0.98, 0.99, 0.995),
    "Cauchy (SoCC '25), Algorithm 1 and eq. 16",
    build,
    tick_s=_RATE_TICK_S,
)
