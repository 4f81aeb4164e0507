"""Update the state of each model, and build the view that sizing rules read.

The target is set in `autoscaler.sizing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.estimate.burstiness import arrival_cv, update_burstiness
from autoscaler.estimate.forecast.forecast_state import update_forecast
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND
from autoscaler.estimate.prefix_hit import fallen_prefix_hit
from autoscaler.estimate.request_lengths import estimate_lengths
from autoscaler.estimate.windows import NoData
from autoscaler.model.learnt_rooms import update_rooms
from autoscaler.model.planned_mix import with_planned_mix
from autoscaler.model.tick_fleet import TickInputs
from autoscaler.model.unmanaged_servers import adopt_unmanaged
from autoscaler.planning.planner_messages import Outcome
from autoscaler.rollout.capacity_and_cost import by_model
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.launch_failures import Faults
from autoscaler.rollout.serving_group import combo_id_of
from autoscaler.sizing.prediction_drift import start_times_s, update_drift
from autoscaler.state.controller_state import ControllerState, Observation
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
) -> dict[str, ModelState]:
    """The updated state of every declared model: measured lengths, forecast, and new losses of
    capacity."""
    gone = (sight.silent - inputs.state.observed.silent_nodes) | sight.reclaimed.keys()
    lost_nodes: dict[str, set[str]] = {}
    for failure in faults.failures:
        nodes = {placed.node for placed in failure.group.placed}
        lost_nodes.setdefault(failure.group.model, set()).update(nodes)
    for group in faults.lost:
        nodes = {placed.node for placed in group.placed if placed.node in gone}
        if group.counts and nodes:
            lost_nodes.setdefault(group.model, set()).update(nodes)
    failed = {failure.group.model for failure in faults.failures}
    running = by_model(inputs.state.groups)
    starts = start_times_s(inputs.combos.values(), inputs.state.models)
    found = {}
    for service in inputs.cluster.services:
        state = inputs.state.models.get(service.model) or ModelState(
            DemandEstimate(service.lengths)
        )
        seen = inputs.observation.unmanaged.get(service.model)
        own = running.get(service.model, ())
        state = adopt_unmanaged(state, service, seen, own)
        if _is_due(service, inputs):
            fleet, cluster = sight.fleet, inputs.cluster
            state = update_drift(state, own, fleet, inputs.combos, cluster, inputs.now_ms)
        if _is_due(service, inputs) or service.model in failed:
            state = update_rooms(state, service, own, sight.fleet, inputs.declared, inputs.now_ms)
        if service.model in lost_nodes:
            nodes = lost_nodes[service.model].union(state.capacity.lost_nodes)
            capacity = replace(
                state.capacity, lost_ms=inputs.now_ms, lost_nodes=tuple(sorted(nodes))
            )
            state = replace(
                state,
                capacity=capacity,
                infeasibility=replace(state.infeasibility, retry_at_ms=0),
            )
        demand = inputs.observation.demand.get(service.model, UNKNOWN_DEMAND)
        clumps = update_burstiness(state.estimate.burstiness, demand)
        if clumps is not state.estimate.burstiness:
            state = replace(state, estimate=replace(state.estimate, burstiness=clumps))
        state = _with_lengths(state, service, inputs)
        policy, due = inputs.cluster.policy, _is_due(service, inputs)
        state = with_planned_mix(state, service, policy, demand, due)
        found[service.model] = _with_forecast(state, service, inputs, starts)
    return found


def _with_lengths(state: ModelState, service: Service, inputs: TickInputs) -> ModelState:
    """`state` with updated lengths and burstiness, every ten seconds because they change slowly.
    Only hits of prefix caches that are gone count at once."""
    demand = inputs.observation.demand.get(service.model, UNKNOWN_DEMAND)
    known, unmet = state.estimate, state.infeasibility
    if not _is_due(service, inputs):
        hit = fallen_prefix_hit(known.lengths, demand)
        if hit == known.lengths.prefix_hit:
            return state
        lengths = replace(known.lengths, prefix_hit=hit)
        return replace(state, estimate=replace(known, lengths=lengths))
    short = unmet.has_unserved and inputs.now_ms < unmet.retry_at_ms
    lengths = estimate_lengths(known.lengths, service.lengths, demand, short)
    cv = arrival_cv(known.burstiness)
    if max(cv, known.arrival_cv) < _CV_MATTERS * min(cv, known.arrival_cv):
        cv = known.arrival_cv
    if lengths == known.lengths and cv == known.arrival_cv:
        return state
    return replace(state, estimate=replace(known, lengths=lengths, arrival_cv=cv))


def _with_forecast(
    state: ModelState, service: Service, inputs: TickInputs, starts: Mapping[str, float]
) -> ModelState:
    """`state` with the expected demand at the time when an instance started now would be ready."""
    if not _is_due(service, inputs):
        return state
    outlook = update_forecast(
        state.estimate.forecast,
        inputs.observation.demand.get(service.model, UNKNOWN_DEMAND).blocks,
        inputs.cluster.policy,
        starts.get(service.model, 0.0),
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


def data_notices(views_: Mapping[str, ModelView]) -> tuple[dict[str, ModelState], list[Decision]]:
    """Mark models whose telemetry stopped, and report a lasting stop once."""
    models: dict[str, ModelState] = {}
    said = []
    for model, view in views_.items():
        state, local = view.state, view.demand.local
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


def evaluated_combos(
    state: ControllerState, observation: Observation, cluster: Cluster
) -> tuple[dict[str, Combo], dict[str, Demand]]:
    """(combos as the planner last evaluated them, demand of that evaluation by model).

    Combos that are in no group, recommendation, proposal or answer are dropped.
    """
    declared = {service.model for service in cluster.services}
    running = {group.combo_id for group in state.groups}
    running |= {combo_id_of(group.switch.source) for group in state.groups if group.switch}
    for advisory in (model.advisory for model in state.models.values()):
        running |= {i for i, _ in advisory.recommended}
        versions = advisory.proposal.versions if advisory.proposal else ()
        running |= {i for version in versions for i, _ in version.change}
    combos = {i: combo for i, combo in state.evaluated.combos.items() if i in running}
    demands = {m: value for m, value in state.evaluated.demands.items() if m in declared}
    for answer in observation.answers:
        pending = state.pending.get(answer.urgency)
        if pending is None or pending.request.number != answer.number:
            continue
        if answer.outcome is Outcome.NONE:
            continue
        combos.update({combo.id: combo for combo in answer.combos})
        asked = (*pending.request.demands, *answer.demands)
        demands.update({d.model: d for d in asked if d.model in answer.scope})
    return combos, demands
