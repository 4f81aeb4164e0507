"""Replays the decisions of a recorded span under another declaration.

The result is the fleet that would have run and its cost. Demand, prices, offers and alerts are the
recorded ones. The planner plans again. The fleet is an `IdealFleet`: launches take their predicted
time and never fail. Latencies are the recorded ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.decide import ControllerState, Effect, Observation, decide
from autoscaler.domain.cluster import Cluster, Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.planning.planning_problem import with_prices
from autoscaler.rollout.fleet_snapshot import snapshot
from autoscaler.rollout.serving_group import combo_id_of, ready_req_per_s
from autoscaler.simulation.ideal_fleet import IdealFleet
from autoscaler.simulation.virtual_planner import (
    PlanFunction,
    PlanTimes,
    VirtualPlanner,
    plan_in_process,
)
from autoscaler.state.effects import PublishAssignment, PublishDecision, SolveRequested
from autoscaler.tick.account import Account
from topics.decisions import Decision

_START_S = 60.0
_RECENT_S = 10
MOST_GAP_S = 10.0


@dataclass(frozen=True, slots=True)
class RecordedTick:
    """One tick of the recording: the cluster declared at that time, and the observation.

    counted: whether the tick belongs to the requested span, or to the time before it.
    """

    now_ms: int
    cluster: Cluster
    observation: Observation
    counted: bool = True


@dataclass(slots=True)
class ModelOutcome:
    """Totals of one model over the span.

    requests: all arrivals. short_requests: arrivals that exceed the ready capacity, summed over
    seconds. short_s: seconds with excess arrivals.
    """

    requests: float = 0.0
    short_requests: float = 0.0
    short_s: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class WhatIf:
    """Totals of the span.

    usd: cost of the billed nodes. decisions: in order, including decisions of kind hold. missing_s:
    length of gaps in the recording, in which demand is not compared with capacity.
    """

    ticks: int = 0
    first_ms: int = 0
    last_ms: int = 0
    missing_s: float = 0.0
    usd: float = 0.0
    models: dict[str, ModelOutcome] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DecidedTick:
    """One repeated tick: the states before and after it, its inputs and its effects."""

    before: ControllerState
    after: ControllerState
    observation: Observation
    cluster: Cluster
    now_ms: int
    effects: tuple[Effect, ...]


def _unwatched(_: DecidedTick) -> None:
    return None


def decide_again(
    state: ControllerState,
    recorded: Iterable[RecordedTick],
    declared: Cluster | None = None,
    plan: PlanFunction = plan_in_process,
    watch: Callable[[DecidedTick], None] = _unwatched,
) -> WhatIf:
    """Decide the span again, starting from `state`. declared: replaces the recorded declaration.
    watch: called with each tick of the requested span.

    All models are in mode act, because recommendations would not change the fleet.
    """
    planner = VirtualPlanner(PlanTimes(), plan)
    result = WhatIf()
    fleet: IdealFleet | None = None
    state = replace(state, term=replace(state.term, announce=None), pending={})
    combos: dict[str, Combo] = dict(state.evaluated.combos)
    account = Account()

    def start_s(group: str) -> float:
        combo = combos.get(combo_id_of(group))
        return combo.start_s if combo else _START_S

    before_ms: int | None = None
    for tick in recorded:
        now_ms = tick.now_ms
        if fleet is None:
            fleet = IdealFleet(tick.observation.statuses, start_s)
            for assignment in state.published.assignments.values():
                fleet.accept(assignment)
        cluster = _in_act_mode(declared or tick.cluster)
        observation = replace(
            tick.observation,
            demand=_with_confirmed_routes(tick.observation.demand, state),
            statuses=fleet.statuses(now_ms),
            answers=planner.take_answers(float(now_ms)),
        )
        before = state
        state, effects = decide(before, observation, cluster, now_ms)
        combos.update(state.evaluated.combos)
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                fleet.accept(effect.record)
            elif isinstance(effect, PublishDecision):
                if tick.counted:
                    result.decisions.append(effect.record)
            elif isinstance(effect, SolveRequested):
                planner.submit(effect.request, cluster, float(now_ms))
        seconds = 0.0 if before_ms is None else (now_ms - before_ms) / 1000.0
        before_ms = now_ms
        if not tick.counted:
            continue
        done = DecidedTick(before, state, observation, cluster, now_ms, effects)
        watch(done)
        account.tick(done)
        result.ticks += 1
        result.first_ms, result.last_ms = result.first_ms or now_ms, now_ms
        if seconds > MOST_GAP_S:
            result.missing_s += seconds
        else:
            _compare(result, state, observation, cluster, now_ms, seconds)
    result.usd = account.totals().usd
    return result


def _in_act_mode(cluster: Cluster) -> Cluster:
    if all(service.mode is Mode.ACT for service in cluster.services):
        return cluster
    services: tuple[Service, ...] = tuple(replace(s, mode=Mode.ACT) for s in cluster.services)
    return replace(cluster, services=services)


def _with_confirmed_routes(
    demand: Mapping[str, ModelDemand], state: ControllerState
) -> dict[str, ModelDemand]:
    """The demand in which reporting gateways confirm the routes of this run instead of the recorded
    routes."""
    result = {}
    for model, observed in demand.items():
        routes = state.published.routes.get(model)
        generation = routes.generation if routes else 0
        gateways = tuple(replace(one, route_generation=generation) for one in observed.gateways)
        result[model] = replace(observed, gateways=gateways)
    return result


def _compare(
    result: WhatIf,
    state: ControllerState,
    observation: Observation,
    cluster: Cluster,
    now_ms: int,
    seconds: float,
) -> None:
    """Add `seconds` of each model: its cost, and its demand above the capacity that is ready."""
    sight = snapshot(
        state.groups,
        observation.statuses,
        state.evaluated.combos,
        with_prices(cluster, state.supply.prices_usd_per_h()),
        now_ms,
        state.term.listens_since_ms,
    )
    ready: dict[str, float] = {}
    for group in state.groups:
        combo = state.evaluated.combos.get(group.combo_id)
        if combo is not None:
            rate = ready_req_per_s(combo, sight.views[group.name])
            ready[group.model] = ready.get(group.model, 0.0) + rate
            outcome = result.models.setdefault(group.model, ModelOutcome())
            outcome.usd += combo.usd_per_h * seconds / 3600.0
    for service in cluster.services:
        rate = arrival_rate(observation.demand.get(service.model))
        outcome = result.models.setdefault(service.model, ModelOutcome())
        outcome.requests += rate * seconds
        short = rate - ready.get(service.model, 0.0)
        if short > 1e-9:
            outcome.short_requests += short * seconds
            outcome.short_s += seconds


def arrival_rate(demand: ModelDemand | None) -> float:
    """Arrivals/s over the last ten reported seconds; 0 without data."""
    if demand is None:
        return 0.0
    spans = [span for span in demand.recent if span[0] <= _RECENT_S]
    return spans[-1][1] / spans[-1][0] if spans else 0.0
