"""A recorded span decided again under another declaration: what would have run, and at what cost.

Owns the questions that a recording can answer. Demand, prices, offers and alerts are as recorded;
the planner is asked anew; the fleet is a `BystanderFleet`, so launches take their predicted time
and none fails. Latencies are those that were recorded, whatever would have run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.domain.cluster import Cluster, Market, Mode, Service
from autoscaler.domain.combo import Combo
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.planning.planning_problem import with_prices
from autoscaler.rollout.capacity_and_cost import billed_usd_per_h
from autoscaler.rollout.fleet_snapshot import look_at
from autoscaler.rollout.serving_group import combo_id_of, ready_req_per_s
from autoscaler.simulation.ideal_fleet import BystanderFleet
from autoscaler.simulation.virtual_planner import Plan, SimSolver, SolveTimes, plan_in_process
from autoscaler.state.effects import PublishAssignment, PublishDecision, SolveRequested
from topics.decisions import Decision

_START_S = 60.0
_RECENT_S = 10
_MOST_GAP_S = 10.0


@dataclass(frozen=True, slots=True)
class Recorded:
    """One tick of the recording: the cluster as it was declared then, and what was seen. counted:
    whether it belongs to the span that is asked about, or only leads up to it."""

    now_ms: int
    cluster: Cluster
    observation: Observation
    counted: bool = True


@dataclass(slots=True)
class ModelOutcome:
    """What came of one model. short_requests: arrivals above what was ready, summed over seconds;
    short_s: seconds in which there were any; requests: all arrivals of the span."""

    requests: float = 0.0
    short_requests: float = 0.0
    short_s: float = 0.0
    usd: float = 0.0


@dataclass(slots=True)
class WhatIf:
    """The whole span. usd: of billed nodes. decisions: in order, those of kind hold included.
    missing_s: gaps in the recording, which are neither billed nor judged."""

    ticks: int = 0
    first_ms: int = 0
    last_ms: int = 0
    missing_s: float = 0.0
    usd: float = 0.0
    models: dict[str, ModelOutcome] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)


def decided_again(
    state: ControllerState,
    recorded: Iterable[Recorded],
    declared: Cluster | None = None,
    plan: Plan = plan_in_process,
) -> WhatIf:
    """Decide the span again, from `state`. declared: instead of what was declared then.

    All models are in mode act: what is only recommended would never run.
    """
    solver = SimSolver(SolveTimes(), plan)
    found = WhatIf()
    fleet: BystanderFleet | None = None
    state = replace(state, pending={}, announce=None)
    combos: dict[str, Combo] = dict(state.combos)

    def start_s(group: str) -> float:
        combo = combos.get(combo_id_of(group))
        return combo.start_s if combo else _START_S

    before_ms: int | None = None
    for tick in recorded:
        now_ms = tick.now_ms
        if fleet is None:
            fleet = BystanderFleet(tick.observation.statuses, start_s)
            for assignment in state.assignments.values():
                fleet.accept(assignment)
        cluster = _acting(declared or tick.cluster)
        observation = replace(
            tick.observation,
            demand=_confirmed(tick.observation.demand, state),
            statuses=fleet.statuses(now_ms),
            answers=solver.answers(float(now_ms)),
        )
        state, effects = decide(state, observation, cluster, now_ms)
        combos.update(state.combos)
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                fleet.accept(effect.record)
            elif isinstance(effect, PublishDecision):
                if tick.counted:
                    found.decisions.append(effect.record)
            elif isinstance(effect, SolveRequested):
                solver.ask(effect.request, cluster, float(now_ms))
        seconds = 0.0 if before_ms is None else (now_ms - before_ms) / 1000.0
        before_ms = now_ms
        if not tick.counted:
            continue
        found.ticks += 1
        found.first_ms, found.last_ms = found.first_ms or now_ms, now_ms
        if seconds > _MOST_GAP_S:
            found.missing_s += seconds
        else:
            _account(found, state, observation, cluster, now_ms, seconds)
    return found


def _acting(cluster: Cluster) -> Cluster:
    if all(service.mode is Mode.ACT for service in cluster.services):
        return cluster
    services: tuple[Service, ...] = tuple(replace(s, mode=Mode.ACT) for s in cluster.services)
    return replace(cluster, services=services)


def _confirmed(demand: Mapping[str, ModelDemand], state: ControllerState) -> dict[str, ModelDemand]:
    """Gateways that were heard apply the routes of this run as they applied those of the other."""
    found = {}
    for model, seen in demand.items():
        routes = state.routes.get(model)
        generation = routes.generation if routes else 0
        gateways = tuple(replace(one, route_generation=generation) for one in seen.gateways)
        found[model] = replace(seen, gateways=gateways)
    return found


def _account(
    found: WhatIf,
    state: ControllerState,
    observation: Observation,
    cluster: Cluster,
    now_ms: int,
    seconds: float,
) -> None:
    """Add `seconds` of what runs now to the bill and to what was short."""
    priced = with_prices(cluster, state.supply.prices_usd_per_h())
    prices = {
        pool.id: 0.0 if pool.market is Market.OWNED else pool.price_usd_per_h
        for pool in priced.pools
    }
    sight = look_at(
        state.groups, observation.statuses, state.combos, priced, now_ms, state.listens_since_ms
    )
    found.usd += billed_usd_per_h(state.groups, sight, prices) * seconds / 3600.0
    ready: dict[str, float] = {}
    for group in state.groups:
        combo = state.combos.get(group.combo_id)
        if combo is not None:
            rate = ready_req_per_s(combo, sight.views[group.name])
            ready[group.model] = ready.get(group.model, 0.0) + rate
            outcome = found.models.setdefault(group.model, ModelOutcome())
            outcome.usd += combo.usd_per_h * seconds / 3600.0
    for service in cluster.services:
        rate = arrival_rate(observation.demand.get(service.model))
        outcome = found.models.setdefault(service.model, ModelOutcome())
        outcome.requests += rate * seconds
        short = rate - ready.get(service.model, 0.0)
        if short > 1e-9:
            outcome.short_requests += short * seconds
            outcome.short_s += seconds


def arrival_rate(demand: ModelDemand | None) -> float:
    """Arrivals/s over the last ten reported seconds; 0 where nothing is known."""
    if demand is None:
        return 0.0
    spans = [span for span in demand.recent if span[0] <= _RECENT_S]
    return spans[-1][1] / spans[-1][0] if spans else 0.0
