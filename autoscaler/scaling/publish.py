"""The end of a tick: the new state, and records where they say something new.

Owns the projection of a tick onto state and effects. Decides nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from autoscaler.controller_state import ControllerState
from autoscaler.domain.cluster import Mode
from autoscaler.domain.combo import Combo
from autoscaler.effects import (
    Effect,
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
)
from autoscaler.scaling.tick import Tick
from autoscaler.transitions.assignments import changed_assignments, changed_routes, route_groups
from autoscaler.transitions.groups import Group, Life
from topics.decisions import PlannedCombo, PlanRecord
from topics.fleet import Assignment


def publish(tick: Tick) -> tuple[ControllerState, list[Effect]]:
    """The state after `tick` and what it publishes: decisions, plan, routes, assignments."""
    state, token = tick.state, tick.state.leader_token
    effects: list[Effect] = [PublishDecision(decision) for decision in tick.decisions]
    routes = dict(state.routes)
    for service in tick.cluster.services:
        if service.mode is not Mode.ACT:
            continue
        groups = tick.of(service.model)
        for group in groups:
            tick.combo(group)
        found = route_groups(groups, tick.views, tick.combos, tick.lengths(service.model))
        record = changed_routes(service, found, routes.get(service.model), token, tick.now_ms)
        if record is not None:
            routes[service.model] = record
            effects.append(PublishRoutes(record))
        for group in groups:
            if group.life is Life.UNROUTED and not group.unrouted_generation:
                tick.groups[group.name] = replace(
                    group, unrouted_generation=routes[service.model].generation
                )
    groups_now = tuple(sorted(tick.groups.values(), key=lambda g: (g.created_ms, g.name)))
    assignments = dict(state.assignments)
    for assignment in _assignments(tick, groups_now):
        assignments[assignment.node] = assignment
        effects.append(PublishAssignment(assignment))
    plan_number = state.plan_number
    if _targets(groups_now) != _targets(state.groups):
        plan_number += 1
        effects.append(PublishPlan(_plan(tick, plan_number)))
    new_state = replace(
        state,
        groups=groups_now,
        assignments=assignments,
        routes=routes,
        models=tick.models,
        tables=tick.tables,
        combos=_kept(tick, groups_now),
        scarce=tick.scarce,
        next_serial=tick.next_serial,
        decision_number=state.decision_number + len(tick.decisions),
        plan_number=plan_number,
        announce="",
        refined_ms=tick.refined_ms,
        refinement_asked_ms=tick.refinement_asked_ms,
    )
    return new_state, effects


def _assignments(tick: Tick, groups: tuple[Group, ...]) -> tuple[Assignment, ...]:
    """Changed assignments; looked for only where groups or the leader token changed."""
    state = tick.state
    tokens = {assignment.leader_token for assignment in state.assignments.values()}
    if groups == state.groups and tokens <= {state.leader_token} and (tokens or not groups):
        return ()
    return changed_assignments(groups, state.assignments, state.leader_token, tick.now_ms)


def _targets(groups: tuple[Group, ...]) -> Counter[tuple[str, str]]:
    return Counter((group.model, group.combo_id) for group in groups if group.counts)


def _plan(tick: Tick, number: int) -> PlanRecord:
    targets = []
    for (model, combo_id), count in sorted(_targets(tuple(tick.groups.values())).items()):
        combo = tick.combos.get(combo_id)
        rate, usd = (combo.req_per_s, combo.usd_per_h) if combo else (0.0, 0.0)
        targets.append(PlannedCombo(model, combo_id, count, rate * count, usd * count))
    shortfall = {}
    for service in tick.cluster.services:
        raw = tick.raw_req_per_s(tick.counting(service.model))
        missing = tick.demand(service.model).req_per_s - raw
        if missing > 0:
            shortfall[service.model] = round(missing, 4)
    return PlanRecord(
        number,
        tick.state.leader_token,
        tick.now_ms,
        "refined" if tick.refined_ms == tick.now_ms else "reactive",
        round(tick.billed_usd_per_h(), 4),
        tick.gap,
        tuple(targets),
        shortfall,
    )


def _kept(tick: Tick, groups: tuple[Group, ...]) -> dict[str, Combo]:
    running = {group.combo_id for group in groups}
    return {
        combo_id: combo
        for combo_id, combo in tick.combos.items()
        if combo_id in running
        or (combo.model in tick.tables and combo_id in tick.tables[combo.model].by_id)
    }
