"""Build the tick's snapshot: prices, availability, fleet status, failures, unassigned instances."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.model.tick_fleet import TickInputs
from autoscaler.planning.planner_messages import Outcome
from autoscaler.planning.planning_problem import with_prices
from autoscaler.rollout.backoff import swept
from autoscaler.rollout.fleet_snapshot import FleetSnapshot, snapshot
from autoscaler.rollout.launch_failures import Failure, Faults, detect_faults
from autoscaler.rollout.serving_group import ServingGroup, combo_id_of
from autoscaler.rollout.supply import fold as fold_supply
from autoscaler.rollout.supply import supply_notices as supply_said
from autoscaler.rollout.unassigned_instances import unassigned_instances
from autoscaler.rollout.versions import version_of
from autoscaler.state.controller_state import ControllerState, Observation
from autoscaler.state.decision_record import notice
from autoscaler.state.operator_controls import ActiveControls
from autoscaler.tick.launch_templates import with_launched, with_templates
from autoscaler.tick.route_hooks import ROUTED_TRAFFIC
from topics.decisions import Decision
from topics.reason_codes import ReasonCode
from topics.topic_table import STATUS

_LOOK_FOR_STRAYS_MS = 10_000
"""Interval in ms between two searches for unassigned instances, which read every status."""


@dataclass(frozen=True, slots=True)
class ObservedTick:
    """The fleet and its inputs at the start of a tick.

    unassigned: instances that no assignment names. listens_since_ms: time since which there was no
    long gap between ticks.
    """

    inputs: TickInputs
    sight: FleetSnapshot
    faults: Faults
    unassigned: frozenset[str]
    listens_since_ms: int
    decisions: tuple[Decision, ...]


def observe(
    state: ControllerState, observation: Observation, guarded: ActiveControls, now_ms: int
) -> ObservedTick:
    """Build the snapshot at `now_ms`."""
    cluster = with_templates(guarded.cluster, observation.statuses)
    rollouts = {model: known.rollout for model, known in state.models.items()}
    groups = with_launched(state.groups, cluster, observation.statuses, rollouts)
    if groups != state.groups:
        state = replace(state, groups=groups)
    supply = fold_supply(
        state.supply, cluster, observation.prices, observation.availability, now_ms
    )
    decisions = [notice("*", why, now_ms) for why in supply_said(state.supply, supply)]
    priced = with_prices(cluster, supply.prices_usd_per_h()) if supply.prices else cluster
    combos, worth = _evaluated_combos(state, observation, cluster)
    sent = {}
    if cluster.routes:
        sent = ROUTED_TRAFFIC(cluster, state.splits, observation.demand)
    alone = _retained_models(state, guarded)
    gap_ms = now_ms - (state.term.ticked_ms or state.term.started_ms)
    deaf = gap_ms > 500.0 * cluster.policy.node_silent_s
    listens_ms = now_ms if deaf else state.term.listens_since_ms or state.term.started_ms
    read_ms = now_ms - observation.lag_ms.get(STATUS.name, 0)
    sight = snapshot(state.groups, observation.statuses, combos, priced, read_ms, listens_ms)
    others = {service.model for service in cluster.services if not service.managed} | alone
    faults = detect_faults(
        state.groups,
        sight,
        state.observed.backoff,
        others,
        now_ms,
        lambda group: _is_suspect(group, state),
    )
    decisions += [_failure_notice(failure, now_ms) for failure in faults.failures]
    inputs = TickInputs(
        now_ms,
        state,
        observation,
        cluster,
        priced,
        combos,
        worth,
        supply,
        swept(faults.backoff, observation.statuses, now_ms) if faults.backoff else {},
        guarded.frozen,
        sent,
        alone,
    )

    stray = state.observed.unassigned
    # The last tick may be more than a second ago.
    before_ms = state.term.ticked_ms or state.term.started_ms
    if now_ms // _LOOK_FOR_STRAYS_MS != before_ms // _LOOK_FOR_STRAYS_MS:
        by_hand = unassigned_instances(sight.fleet.running, state.published.assignments)
        decisions += [
            notice(model, Reason(ReasonCode.STRAY, name, (node,)), now_ms)
            for name, (model, node) in sorted(by_hand.items())
            if name not in stray
        ]
        stray = frozenset(by_hand)
    return ObservedTick(inputs, sight, faults, stray, listens_ms, tuple(decisions))


def _evaluated_combos(
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


def _is_suspect(group: ServingGroup, state: ControllerState) -> bool:
    known = state.models.get(group.model)
    return known is not None and known.rollout.is_suspect(version_of(group).digest)


def _retained_models(state: ControllerState, guarded: ActiveControls) -> frozenset[str]:
    """Models that were removed from the declaration while Shoal was not allowed to change them."""
    declared = {service.model for service in guarded.cluster.services}
    declared |= {route.name for route in guarded.cluster.routes}
    published = state.published.routes
    split = {name for name, routes in published.items() if routes.split}
    removed = ({group.model for group in state.groups} | split) - declared
    advised = {model for model in removed if model in published and published[model].advised}
    return frozenset(model for model in removed if guarded.stops(model) or model in advised)


def _failure_notice(failure: Failure, now_ms: int) -> Decision:
    name, node, wait = failure.group.name, (failure.node,), (failure.wait_s,)
    why = Reason(ReasonCode.BACKING_OFF, name, node, wait, because=(failure.why,))
    said = notice(failure.group.model, why, now_ms)
    return replace(said, change=((failure.group.combo_id, -1),))
