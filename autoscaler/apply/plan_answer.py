"""Apply a planner answer to the present fleet, which may have changed since the request.

A part that no longer fits is left out and planned again; the rest is applied. Removals, unlike
additions, need evidence at the moment when they begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from autoscaler.apply.approvals import permission, propose, unasked
from autoscaler.apply.change_cause import change_reasons, decision_kind
from autoscaler.apply.decision import decision_about, with_reasons
from autoscaler.apply.defragment import defragment
from autoscaler.apply.fleet_changes import AppliedPlan, FleetChanges
from autoscaler.apply.infeasible import constraints_violated, slo_unattainable, unmet_demand
from autoscaler.apply.model_change import (
    AppliedChange,
    Change,
    apply_change,
    no_room,
    planned_change,
)
from autoscaler.apply.recommendation import recommend
from autoscaler.apply.requested_answer import RequestedAnswer, requested_answer
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.planning.planner_messages import Outcome, PlanAnswer, Urgency
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.node_limits import within_plan, without_limit
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.sizing.scale_in.removal import scale_in_veto
from autoscaler.state.controller_state import Pending
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import RATE_EPSILON
from autoscaler.state.replan_trigger import partly_applied
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

_NO_CHANGE = Change()


def apply_answer(
    answer: PlanAnswer, pending: Pending, fleet: TickFleet, site: FreeCapacity
) -> AppliedPlan:
    """Apply `answer` to the request `pending`, model by model, higher priority first.

    If a model's demand is served, it gets no more rented nodes than the full plan lists: additions
    without room wait until other groups leave. If all managed models wait for each other in this
    way, the first model whose change succeeds with further nodes may rent them.
    """
    if answer.outcome is Outcome.NONE:
        return AppliedPlan(fleet.groups, site, fleet.models)
    asked = requested_answer(answer, pending, fleet)
    applied = _apply_to_models(asked, fleet, site)
    if not applied.waits or applied.groups != fleet.groups or _moves(fleet):
        return applied
    for model in applied.waits:
        further = _apply_to_models(asked, fleet, site, unlimited=model)
        if further.groups != fleet.groups:
            return further
    return applied


def _moves(fleet: TickFleet) -> bool:
    """Whether a group starts, leaves or switches, except groups of recommended models."""
    advised = {service.model for service in fleet.cluster.services} - fleet.managed
    return any(
        group.life is not Life.ACTIVE
        or group.switch is not None
        or not fleet.sight.views[group.name].all_ready
        for group in fleet.groups
        if group.model not in advised
    )


def _apply_to_models(
    asked: RequestedAnswer, fleet: TickFleet, site: FreeCapacity, unlimited: str = ""
) -> AppliedPlan:
    """Apply the answer to all its models. unlimited: name of the model that may use more nodes than
    the plan lists."""
    changes = FleetChanges(fleet, site)
    in_scope = (s for s in fleet.cluster.services if s.model in asked.answer.scope)
    order = sorted(in_scope, key=lambda s: (-s.priority, s.model))
    for service in order:
        _note_limits(asked, service, changes)
        if service.model in fleet.managed:
            _apply_to_model(asked, service, changes, is_limited=service.model != unlimited)
        else:
            state = changes.models[service.model]
            changes.report(service.model, recommend(asked, service, state, fleet))
    if asked.makes_room:
        _wait_for_room(asked, order, changes)
    elif asked.is_full and not changes.waits:
        defragment(changes, asked.answer.scope)
    return changes.result()


def _note_limits(asked: RequestedAnswer, service: Service, changes: FleetChanges) -> None:
    """Report an unattainable SLO and violated constraints, and adopt the division of traffic."""
    model, fleet = service.model, changes.fleet
    target = +asked.planned(model)
    state = changes.models[model]
    changes.report(model, slo_unattainable(asked.answer, target, state, service, fleet))
    state = changes.models[model]
    changes.report(model, constraints_violated(asked.answer, state, service, fleet))
    state = changes.models[model]
    is_over = asked.is_full and not asked.leaving
    until_ms = 0 if is_over else state.infeasibility.preemption_until_ms
    split = asked.split(model)
    changes.models[model] = replace(
        state,
        target=replace(state.target, traffic_split=split),
        infeasibility=replace(state.infeasibility, preemption_until_ms=until_ms),
    )


def _apply_to_model(
    asked: RequestedAnswer, service: Service, changes: FleetChanges, is_limited: bool
) -> None:
    """Apply the answer's part for a managed model, and report the change and unserved demand."""
    model, fleet = service.model, changes.fleet
    counting = fleet.views[model].serving.counting
    change = _requested_change(asked, service, counting, fleet)
    done = _applied(asked, change, service, counting, changes, is_limited)
    if done.left_out is not None:
        changes.replan.append(partly_applied(model, done.left_out, of_all=asked.makes_room))
    _decide(asked, service, counting, done, changes)
    _report_unmet(asked, service, counting, done, changes)


def _applied(
    asked: RequestedAnswer,
    change: Change,
    service: Service,
    counting: tuple[ServingGroup, ...],
    changes: FleetChanges,
    is_limited: bool,
) -> AppliedChange:
    """`change` applied to the fleet so far, within the plan's nodes if the model is served."""
    fleet, site, state = changes.fleet, changes.site, changes.models[service.model]
    short = asked.short_req_per_s[service.model]
    inside = site
    is_served = fleet.views[service.model].covers and short <= RATE_EPSILON
    limits = asked.node_limits if change.starts else None
    if limits is not None and is_limited and not asked.makes_room and is_served:
        stays = [group for group in changes.groups.values() if group.name not in change.leaves]
        inside = within_plan(site, limits, stays)
        version = fleet.launch_version(service.model)
        placed = start(change.starts, fleet.combos, service, inside, fleet.now_ms, version)
        unplaced = placed.unplaced
        if unplaced:
            changes.waits.append(service.model)
            change = replace(_NO_CHANGE, left_out=no_room(unplaced))
    done = apply_change(change, service, counting, changes.groups, inside, state, fleet, short)
    if inside is not site:
        done = replace(done, site=without_limit(done.site, inside, site))
    return done


def _decide(
    asked: RequestedAnswer,
    service: Service,
    counting: tuple[ServingGroup, ...],
    done: AppliedChange,
    changes: FleetChanges,
) -> None:
    """Make the change part of the fleet, or propose it, with a decision about it."""
    model, fleet, state = service.model, changes.fleet, changes.models[service.model]
    permit = permission(done, state, fleet) if service.mode is Mode.APPROVE else None
    if service.mode is Mode.APPROVE and permit is None:
        reasons, decision = _decision(asked, service, state, done, fleet)
        changes.report(model, propose(decision, reasons, done, counting, state, fleet))
        return
    changes.keep(done, model)
    if done.started or done.going:
        reasons, decision = _decision(asked, service, state, done, fleet)
        if permit is not None:
            said = with_reasons(decision, (*reasons, permit))
            decision, changes.models[model] = unasked(said, done, state)
        changes.decisions.append(decision)
        return
    before, after = fleet.models[model].target.traffic_split, state.target.traffic_split
    if asked.is_full and before is not after and before.differs(after):
        why = Reason(ReasonCode.DIVIDED_ANEW, model, because=asked.trigger)
        changes.decisions.append(notice(model, why, fleet.now_ms))


def _decision(
    asked: RequestedAnswer,
    service: Service,
    state: ModelState,
    done: AppliedChange,
    fleet: TickFleet,
) -> tuple[tuple[Reason, ...], Decision]:
    """The reasons of a change, and the decision about it. state: before the change."""
    reasons = change_reasons(asked, state, fleet, service, done)
    kind = decision_kind(asked, state, done)
    over_ms = state.target.overload_since_ms if kind in ("scale_out", "replace") else 0
    usd = done.delta_usd_per_h
    return reasons, decision_about(
        fleet, service.model, kind, reasons, state, True, usd, over_ms, done.change
    )


def _report_unmet(
    asked: RequestedAnswer,
    service: Service,
    counting: tuple[ServingGroup, ...],
    done: AppliedChange,
    changes: FleetChanges,
) -> None:
    """Remember and report demand or a floor that the answer does not serve."""
    model, fleet = service.model, changes.fleet
    short = asked.short_req_per_s[model]
    gains = bool(done.started or done.switched)
    below_floor = not gains and len(counting) < service.min_instances
    if short <= RATE_EPSILON and not done.unplaced and not below_floor:
        return
    runs = fleet.views[model].groups  # includes an open proposal
    if done.change:
        runs = len(counting) + sum(count for _, count in done.change)
    sought, state = asked.demand_req_per_s[model], changes.models[model]
    told = unmet_demand(asked.answer, short, sought, runs, state, service, fleet)
    changes.report(model, told)
    if told[0] and not asked.is_full:
        alone = Reason(ReasonCode.ADDITIONS_NOT_ENOUGH, model)
        changes.replan.append(partly_applied(model, alone, of_all=True))


def _wait_for_room(asked: RequestedAnswer, order: Iterable[Service], changes: FleetChanges) -> None:
    """Let the models that need the room wait until the leaving groups are gone."""
    models = [service.model for service in order]
    until_ms = max((changes.models[m].infeasibility.preemption_until_ms for m in models), default=0)
    if until_ms <= changes.fleet.now_ms:
        return
    for model in models:
        is_changed = asked.counts.get(model) != asked.asked.get(model)
        if asked.short_req_per_s[model] or is_changed:
            state = changes.models[model]
            unmet = replace(state.infeasibility, preemption_until_ms=until_ms)
            changes.models[model] = replace(state, infeasibility=unmet)


def _requested_change(
    asked: RequestedAnswer, service: Service, counting: tuple[ServingGroup, ...], fleet: TickFleet
) -> Change:
    """The change that the answer requires from the model's present fleet."""
    if asked.answer.urgency is Urgency.URGENT:
        change = _urgent_change(asked, service, counting, fleet)
    else:
        change = _full_change(asked, service, counting, fleet)
    return replace(change, makes_room=asked.makes_room)


def _urgent_change(
    asked: RequestedAnswer, service: Service, counting: tuple[ServingGroup, ...], fleet: TickFleet
) -> Change:
    """Additions, and the removals that they replace. Combos that were added since the request, for
    example by a full plan, are not added twice."""
    model = service.model
    view, base = fleet.views[model], asked.asked.get(model, Counter())
    have = Counter(group.combo_id for group in counting)
    has_floor = len(counting) >= service.min_instances
    if view.covers and has_floor:
        return _NO_CHANGE
    change = planned_change(asked.change(model))
    change = replace(change, starts=change.starts - (have - base), urgent=True)
    moved_on = have != base or view.frozen is not None or not change.names_only(counting)
    if change.leaves and moved_on and has_floor:
        return _NO_CHANGE  # the fleet has changed, so the model is planned again
    short = asked.short_req_per_s[model]
    if (
        moved_on
        or not change.starts
        or scale_in_veto(view, change.adds, change.removes, short, fleet.combos)
    ):
        change = replace(change, leaves=())
    return change


def _full_change(
    asked: RequestedAnswer, service: Service, counting: tuple[ServingGroup, ...], fleet: TickFleet
) -> Change:
    """The planned change, if the fleet is still the one of the request."""
    model = service.model
    view, change = fleet.views[model], planned_change(asked.change(model))
    have = Counter(group.combo_id for group in counting)
    if have != asked.asked.get(model, Counter()) or not change.names_only(counting):
        return replace(_NO_CHANGE, left_out=Reason(ReasonCode.FLEET_CHANGED))
    if not (change.leaves or change.switches):
        return change
    short = asked.short_req_per_s[model]
    why = scale_in_veto(view, change.adds, change.removes, short, fleet.combos)
    if why is None:
        return change
    is_short = view.planned_req_per_s < view.required_req_per_s * (1 - RATE_EPSILON)
    return Change(change.starts, left_out=why) if is_short else _NO_CHANGE
