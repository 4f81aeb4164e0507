"""Update the state of each model, and build the view that sizing rules read.

The target is set in `autoscaler.sizing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from autoscaler.domain.cluster import Policy, Service
from autoscaler.domain.component_graph import RequestType
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import WorkloadType
from autoscaler.estimate.burstiness import arrival_cv, update_burstiness
from autoscaler.estimate.forecast.forecast_state import update_forecast
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.prefix_hit import fallen_prefix_hit
from autoscaler.estimate.request_lengths import estimate_lengths
from autoscaler.estimate.windows import NoData
from autoscaler.estimate.workload_mix import declared_mix, estimate_kind_mix, estimate_mix
from autoscaler.model.learnt_rooms import room_notices, update_rooms
from autoscaler.model.tick_fleet import TickInputs
from autoscaler.model.unmanaged_servers import adopt_unmanaged
from autoscaler.rollout.capacity_and_cost import by_model
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.launch_failures import Faults
from autoscaler.sizing.prediction_drift import start_times_s, update_drift
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import DemandEstimate, ModelState
from autoscaler.state.model_view import ModelView
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

_LENGTHS_EVERY_MS = 10_000
"""Interval in ms between two updates of slow estimates."""
_SAY_SILENCE_MS = 10_000
"""Silence in ms after which a decision reports that telemetry stopped."""
_CV_MATTERS = 1.25
"""Factor by which the CV of the times between arrivals must change, because each change evaluates
all combos again."""


def update_models(
    inputs: TickInputs, faults: Faults, sight: FleetSnapshot
) -> tuple[dict[str, ModelState], list[Decision]]:
    """The updated state of every declared model: measured lengths, forecast, and new losses of
    capacity; and a decision for each newly learnt room that differs from its prediction."""
    now_ms, policy = inputs.now_ms, inputs.cluster.policy
    lost_nodes = _lost_nodes(inputs, faults, sight)
    failed = {failure.group.model for failure in faults.failures}
    running = by_model(inputs.state.groups)
    due = {service.model for service in inputs.cluster.services if _is_due(service, inputs)}
    starts = start_times_s(inputs.combos.values(), inputs.state.models) if due else {}
    spends_budget = policy.spends_budget
    found: dict[str, ModelState] = {}
    said: list[Decision] = []
    for service in inputs.cluster.services:
        model, is_due = service.model, service.model in due
        state = inputs.state.models.get(model) or ModelState(DemandEstimate(service.lengths))
        own = running.get(model, ())
        state = adopt_unmanaged(state, service, inputs.observation.unmanaged.get(model), own)
        if is_due:
            fleet, cluster = sight.fleet, inputs.cluster
            state = update_drift(state, own, fleet, inputs.combos, cluster, now_ms)
        if is_due or model in failed:
            known = state.learnt
            state = update_rooms(state, service, own, sight.fleet, inputs.declared, now_ms)
            said += room_notices(service, known, state.learnt, inputs.declared, now_ms)
        if model in lost_nodes:
            nodes = lost_nodes[model].union(state.capacity.lost_nodes)
            capacity = replace(state.capacity, lost_ms=now_ms, lost_nodes=tuple(sorted(nodes)))
            unmet = replace(state.infeasibility, retry_at_ms=0)
            state = replace(state, capacity=capacity, infeasibility=unmet)
        demand = inputs.observation.demand.get(model, UNKNOWN_DEMAND)
        clumps = update_burstiness(state.estimate.burstiness, demand)
        if clumps is not state.estimate.burstiness:
            state = replace(state, estimate=replace(state.estimate, burstiness=clumps))
        state = _with_lengths(state, service, demand, now_ms, is_due)
        state = _with_planned_mix(state, service, spends_budget, policy, demand, is_due)
        if is_due:
            state = _with_forecast(state, service, demand, inputs, starts.get(model, 0.0))
        found[model] = state
    return found, said


def _lost_nodes(inputs: TickInputs, faults: Faults, sight: FleetSnapshot) -> dict[str, set[str]]:
    """By model, the nodes whose capacity was lost since the last tick."""
    gone = (sight.silent - inputs.state.observed.silent_nodes) | sight.reclaimed.keys()
    found: dict[str, set[str]] = {}
    for failure in faults.failures:
        nodes = {placed.node for placed in failure.group.placed}
        found.setdefault(failure.group.model, set()).update(nodes)
    for group in faults.lost:
        nodes = {placed.node for placed in group.placed if placed.node in gone}
        if group.counts and nodes:
            found.setdefault(group.model, set()).update(nodes)
    return found


def _with_lengths(
    state: ModelState, service: Service, demand: ModelDemand, now_ms: int, due: bool
) -> ModelState:
    """`state` with updated lengths and burstiness, every ten seconds because they change slowly.
    Only hits of prefix caches that are gone count at once."""
    known, unmet = state.estimate, state.infeasibility
    if not due:
        hit = known.lengths.prefix_hit and fallen_prefix_hit(known.lengths, demand)
        if hit == known.lengths.prefix_hit:
            return state
        lengths = replace(known.lengths, prefix_hit=hit)
        return replace(state, estimate=replace(known, lengths=lengths))
    short = unmet.has_unserved and now_ms < unmet.retry_at_ms
    lengths = estimate_lengths(known.lengths, service.lengths, demand, short)
    cv = arrival_cv(known.burstiness)
    if max(cv, known.arrival_cv) < _CV_MATTERS * min(cv, known.arrival_cv):
        cv = known.arrival_cv
    if lengths == known.lengths and cv == known.arrival_cv:
        return state
    return replace(state, estimate=replace(known, lengths=lengths, arrival_cv=cv))


def _with_planned_mix(
    state: ModelState,
    service: Service,
    spends_budget: bool,
    policy: Policy,
    demand: ModelDemand,
    due: bool,
) -> ModelState:
    """`state` with updated shares of the request types, which budget mode and models of components
    plan with; without shares if plans use none. due: whether measured shares may change the planned
    ones now."""
    types: Sequence[WorkloadType | RequestType] = ()
    if service.graph is not None:
        types = service.graph.types
    elif spends_budget:
        types = service.types
    mix = state.estimate.mix
    if [name for name, _ in mix] != [kind.name for kind in types]:
        mix = declared_mix(types)
    elif types and due and service.graph is not None:
        mix = estimate_kind_mix(mix, demand, policy.significance)
    elif types and due:
        mix = estimate_mix(mix, service.types, demand, policy.significance)
    if mix == state.estimate.mix:
        return state
    return replace(state, estimate=replace(state.estimate, mix=mix))


def _with_forecast(
    state: ModelState, service: Service, demand: ModelDemand, inputs: TickInputs, start_s: float
) -> ModelState:
    """`state` with the expected demand at the time when an instance started now would be ready."""
    outlook = update_forecast(
        state.estimate.forecast,
        demand.blocks,
        inputs.cluster.policy,
        start_s,
        _stagger_slot(service),
        inputs.now_ms,
    )
    if outlook is state.estimate.forecast:
        return state
    return replace(state, estimate=replace(state.estimate, forecast=outlook))


def _stagger_slot(service: Service) -> int:
    return sum(service.model.encode())


def _is_due(service: Service, inputs: TickInputs) -> bool:
    """Whether the model's slow update is due: once in ten seconds, at a second that depends on the
    model. Ticks may be more than a second apart."""
    before_ms = inputs.state.term.ticked_ms or inputs.state.term.started_ms
    own_ms = _stagger_slot(service) * 1000
    return (inputs.now_ms + own_ms) // _LENGTHS_EVERY_MS != (
        before_ms + own_ms
    ) // _LENGTHS_EVERY_MS


def data_notices(
    views: Mapping[str, ModelView], states: Mapping[str, ModelState]
) -> tuple[dict[str, ModelState], list[Decision]]:
    """`states` with marks of the models whose telemetry stopped, and one report of each lasting
    stop."""
    models: dict[str, ModelState] = {}
    said = []
    for model, view in views.items():
        state, local = states[model], view.demand.local
        silent = view.demand.is_stale
        if isinstance(local, NoData):
            age_ms = view.now_ms - local.last_ms if local.last_ms is not None else 0
        else:
            age_ms = local.age_ms
        known = state.estimate
        told = known.no_data_noticed and silent
        if silent and not told and age_ms >= _SAY_SILENCE_MS:
            why = Reason(ReasonCode.NO_TELEMETRY, model, quantities=(age_ms / 1000,))
            said.append(notice(model, why, view.now_ms))
            told = True
        if (silent, told) != (known.no_data, known.no_data_noticed):
            known = replace(known, no_data=silent, no_data_noticed=told)
            state = replace(state, estimate=known)
        models[model] = state
    return models, said
