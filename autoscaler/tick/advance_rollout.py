"""Advance every model's rollout by one step: waves, cancelled removals, undeclared models."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from autoscaler.model.tick_fleet import TickFleet, TickInputs
from autoscaler.planning.time_limits import LEAST_DRAIN_S, drain_timeout_s
from autoscaler.rollout.capacity_and_cost import by_model, raw_req_per_s
from autoscaler.rollout.diff import revived
from autoscaler.rollout.multi_node import waits
from autoscaler.rollout.serving_group import Life, ServingGroup, ready_req_per_s
from autoscaler.rollout.waves import RemovalLimits, WaveInputs, retire, step
from autoscaler.sizing.scale_in.conditions import EXCHANGE, failed_condition
from autoscaler.state.model_view import RATE_EPSILON, ModelView
from autoscaler.state.operator_controls import topics_behind


def retire_undeclared(
    groups: tuple[ServingGroup, ...], inputs: TickInputs
) -> tuple[ServingGroup, ...]:
    """Retire the groups of models that are no longer declared, except groups that Shoal may not
    change."""
    stay = {service.model for service in inputs.cluster.services} | inputs.retained_models
    return tuple(
        group
        if group.model in stay or group.life is not Life.ACTIVE
        else retire(group, inputs.now_ms)
        for group in groups
    )


def advance_waves(groups: tuple[ServingGroup, ...], fleet: TickFleet) -> tuple[ServingGroup, ...]:
    """Advance the rollout waves of every model by one step. groups: those of `fleet`, after pending
    removals were cancelled."""
    if all(_is_idle(group) for group in groups):
        return groups
    moved: list[ServingGroup] = []
    for model, own in by_model(groups).items():
        view = fleet.views.get(model)
        idle = all(_is_idle(group) for group in own)
        theirs = model in fleet.inputs.retained_models or (
            view is not None and not view.service.managed
        )
        if idle or theirs:
            moved += own
            continue
        moved += _in_place(step(own, _wave_inputs(own, view, fleet)), fleet.now_ms)
    return tuple(moved)


def _in_place(groups: Iterable[ServingGroup], now_ms: int) -> list[ServingGroup]:
    """`groups`, in which a group whose predecessor on its GPUs is gone starts now."""
    groups = tuple(groups)
    names = {group.name for group in groups}
    return [
        replace(group, replaces="", created_ms=now_ms, since_ms=now_ms)
        if group.replaces and group.replaces not in names
        else group
        for group in groups
    ]


def _is_idle(group: ServingGroup) -> bool:
    is_settled = group.life is Life.ACTIVE and not group.replaces
    return is_settled and group.switch is None and not waits(group)


def _wave_inputs(own: list[ServingGroup], view: ModelView | None, fleet: TickFleet) -> WaveInputs:
    inputs, sight, combos = fleet.inputs, fleet.sight, fleet.combos
    return WaveInputs(
        now_ms=inputs.now_ms,
        limits=_removal_limits(own, view, fleet) if view is not None else RemovalLimits(),
        ready_req_per_s={
            g.name: ready_req_per_s(combos[g.combo_id], sight.views[g.name])
            if g.combo_id in combos
            else 0.0
            for g in own
        },
        views=sight.views,
        gateways=view.demand.reporting_gateways if view is not None else (),
        fleet=sight.fleet,
        assignments=inputs.state.published.assignments,
        drain_timeout_ms=_drain_timeout_ms(own, view, inputs),
        rated_req_per_s={g.name: raw_req_per_s([g], combos) for g in own},
        reclaim_ms={g.name: at_ms for g in own if (at_ms := sight.reclaim_ms(g))},
        paused=bool(topics_behind(inputs.observation.lag_ms)),
    )


def _removal_limits(own: list[ServingGroup], view: ModelView, fleet: TickFleet) -> RemovalLimits:
    target = view.raw_for(view.state.target.req_per_s)
    # Planned capacity may be below demand, if the model gives capacity to other models or makes
    # room first. Groups on reclaimed nodes count too, because they serve until the node is gone.
    sight = fleet.sight
    # A group without GPUs yet replaces one that must leave first.
    wanted = [
        group
        for group in own
        if not group.replaces and (sight.counts(group) or sight.reclaim_ms(group))
    ]
    proven = failed_condition(view, EXCHANGE) is None
    return RemovalLimits(
        needed_req_per_s=min(target, raw_req_per_s(wanted, fleet.combos)),
        floor=min(view.service.min_instances, len(wanted)),
        max_disruption=view.service.max_disruption,
        proven_req_per_s=target if proven else math.inf,
    )


def _drain_timeout_ms(own: list[ServingGroup], view: ModelView | None, inputs: TickInputs) -> int:
    """The model's drain time-out in ms. For an undeclared model, it is the time-out in the
    assignments of its nodes."""
    if view is not None:
        return int(1000 * drain_timeout_s(view.service, view.policy, view.state.estimate.lengths))
    nodes = {placed.node for group in own for placed in group.placed}
    assignments = inputs.state.published.assignments
    told = [assignments[n] for n in nodes if n in assignments]
    return max([int(1000 * LEAST_DRAIN_S), *(one.drain_timeout_ms for one in told)])


def keep_needed(fleet: TickFleet) -> tuple[ServingGroup, ...]:
    """Cancel pending removals of models below their target, because no new instance would serve
    sooner."""
    groups, views = fleet.groups, fleet.views
    leaving = {g.model for g in groups if g.life in (Life.RETIRING, Life.UNROUTED)}
    short = {
        model
        for model in leaving
        if model in views
        and views[model].planned_req_per_s
        < views[model].state.target.req_per_s * (1.0 - RATE_EPSILON)
    }
    if not short:
        return groups
    lost = {name for name, view in fleet.sight.views.items() if view.lost}
    candidates = [g for g in groups if g.model in short and g.name not in lost]
    kept = {group.name: group for group in revived(candidates, fleet.now_ms)}
    return tuple(kept.get(group.name, group) for group in groups)
