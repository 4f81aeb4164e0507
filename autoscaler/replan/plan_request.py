"""The planner request of a tick: urgent for models below target, full after triggers.

At most one request per urgency is open. A request without an answer in time is abandoned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from autoscaler.apply.model_change import room_to_switch
from autoscaler.domain.cluster import Market
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.workload import Demand
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.model.unmanaged_servers import is_uncounted, unmanaged_counts
from autoscaler.planning.planner_messages import PlanRequest, RouteTraffic, RunningGroup, Urgency
from autoscaler.replan.launch_limits import obtainable_nodes, unusable_nodes
from autoscaler.rollout.capacity_and_cost import nodes_of
from autoscaler.rollout.node_limits import planned_nodes
from autoscaler.rollout.role_switch import switchable
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.versions import declared_version, runs
from autoscaler.sizing.scale_in.removal import fixed_models, models_that_may_not_shrink
from autoscaler.state.controller_state import Pending
from autoscaler.state.model_view import SLIVER, ModelView
from autoscaler.state.replan_trigger import Trigger

GIVE_UP_MS = {Urgency.URGENT: 120_000, Urgency.FULL: 1_800_000}
"""A request without an answer is abandoned after this time, in ms. The planner normally answers
every request, even if it found no plan."""

_RATE_MATTERS = 1.5


def models_below_target(fleet: TickFleet) -> tuple[str, ...]:
    """Models that need more capacity at once: below target or floor, or with unknown capacity.

    Managed models come first; recommended models only if no managed model is below target. A model
    for which no more capacity was available waits before its next request. It is included earlier
    if another model makes a request, so that free capacity is assigned by priority. Models that
    make room or wait for room are left to a full plan. Models with uncounted servers wait.
    """
    found: list[str] = []
    waiting: list[str] = []
    for service in fleet.cluster.services:
        state = fleet.models[service.model]
        view = fleet.views[service.model]
        if fleet.now_ms < state.infeasibility.preemption_until_ms or is_uncounted(service, state):
            continue
        # A higher target alone needs no new request while only the floor is unmet.
        waits = fleet.now_ms < state.infeasibility.retry_at_ms and (
            view.covers
            or state.target.needed_req_per_s <= state.infeasibility.attempted_req_per_s * 1.05
        )
        known = fleet.inputs.evaluated_at.get(service.model)
        mix_moved = (
            service.graph is not None and known is not None and known.mix != state.estimate.mix
        )
        if view.groups and (mix_moved or _is_stale(known, view)):
            found.append(service.model)
            continue
        if not view.covers or view.groups < service.min_instances:
            (waiting if waits else found).append(service.model)
    if not found:
        return ()
    alike = managed_first(found, fleet, advise=False)
    managed = fleet.views[alike[0]].service.managed
    waiting = [model for model in waiting if fleet.views[model].service.managed is managed]
    return tuple(sorted((*alike, *waiting)))


def _is_stale(valued: Demand | None, view: ModelView) -> bool:
    """Whether the planner must evaluate the combos again: lengths, burstiness or the number of
    instances that share the arrivals have changed."""
    if valued is None:
        return True
    state = view.state
    if (valued.lengths, valued.arrival_cv) != (state.estimate.lengths, state.estimate.arrival_cv):
        return True
    low, high = sorted((valued.req_per_s, view.kept_req_per_s / state.capacity.derate))
    return high > _RATE_MATTERS * max(low, 1e-3)


def urgent_request(number: int, fleet: TickFleet, scope: tuple[str, ...]) -> Pending:
    """A request for additions to the models in `scope`."""
    known = (fleet.models[model].target.why for model in scope)
    reasons = tuple(why for why in known if why is not None)
    request = replace(
        _request(number, Urgency.URGENT, fleet, scope),
        scale_in_locked=fixed_models(fleet.views[model] for model in scope),
        groups=_running_groups(fleet, scope),
        settling=_settling(fleet, scope),
    )
    return Pending(request, reasons)


def full_request(
    number: int,
    fleet: TickFleet,
    scope: tuple[str, ...],
    triggers: Iterable[Trigger],
    routes: tuple[RouteTraffic, ...],
) -> Pending:
    """A request for a full plan of `scope`. routes: traffic of services that route to several
    models."""
    triggers = tuple(triggers)
    reasons = tuple(trigger.why for trigger in triggers)
    request = _request(number, Urgency.FULL, fleet, scope)
    request = replace(
        request,
        surge_only=_needs_surge_room(fleet, triggers),
        removals_only=_removals_only(triggers),
        scale_in_locked=models_that_may_not_shrink([fleet.views[model] for model in scope]),
        switchable=may_switch(fleet, scope),
        groups=_running_groups(fleet, scope),
        settling=_settling(fleet, scope),
        routes=routes,
    )
    return Pending(request, reasons)


def _removals_only(triggers: Iterable[Trigger]) -> bool:
    """Whether capacity became superfluous and nothing else changed. Then an exchange would save
    little, and would often replace instances that have just started."""
    return all(trigger.frees_capacity for trigger in triggers)


def may_switch(fleet: TickFleet, scope: Collection[str]) -> tuple[tuple[str, int], ...]:
    """Combos of the models in `scope` that may take other roles now, and how many of each."""
    found: Counter[str] = Counter()
    if scope and fleet.cluster.policy.switches_roles:
        found.update(group.combo_id for group in _switchable_groups(fleet, scope))
        for model in scope:
            view = fleet.views[model]
            if not view.service.managed and view.frozen is None:
                found.update(dict(view.state.advisory.recommended))
    return tuple(sorted(found.items()))


def _switchable_groups(fleet: TickFleet, scope: Collection[str]) -> Iterator[ServingGroup]:
    """The groups of the managed models in `scope` that may take other roles now."""
    for view in (fleet.views[model] for model in scope):
        if view.service.managed and view.frozen is None:
            own = view.serving.counting
            room = room_to_switch(view, view.service, own, fleet.combos, fleet.sight, True)
            yield from switchable(own, room)


def _running_groups(fleet: TickFleet, scope: Collection[str]) -> tuple[RunningGroup, ...]:
    """The groups of the managed models in `scope`, which the answer names."""
    tenants = Counter(node for group in fleet.groups for node in {p.node for p in group.placed})
    switchable_names = {group.name for group in _switchable_groups(fleet, scope)}
    return tuple(
        RunningGroup(
            name=group.name,
            combo_id=group.combo_id,
            is_ready=fleet.sight.views[group.name].all_ready,
            neighbours=sum(tenants[node] - 1 for node in {p.node for p in group.placed}),
            created_ms=group.created_ms,
            may_switch=group.name in switchable_names,
            outdated=_is_outdated(group, fleet),
        )
        for group in fleet.groups
        if group.model in scope
        and fleet.views[group.model].service.managed
        and fleet.sight.counts(group)
    )


def _is_outdated(group: ServingGroup, fleet: TickFleet) -> bool:
    view = fleet.views[group.model]
    rollout = view.state.rollout
    return bool(rollout.target) and not runs(group, rollout.goal(declared_version(view.service)))


def _settling(fleet: TickFleet, scope: Collection[str]) -> tuple[tuple[str, int], ...]:
    """Combos of `scope` with groups that started less than `scale_in_after` ago, and how many."""
    found = Counter(
        group.combo_id
        for group in fleet.groups
        if group.model in scope
        and fleet.sight.counts(group)
        and fleet.now_ms - group.created_ms
        < 1000 * fleet.views[group.model].service.scale_in_after_s
    )
    return tuple(sorted(found.items()))


def _needs_surge_room(fleet: TickFleet, triggers: tuple[Trigger, ...]) -> bool:
    """Whether every trigger is an exchange that found no room. Then the plan must add before it
    removes; an unrestricted plan would find no room again."""
    return all(
        trigger.is_partly_applied
        and trigger.scope
        and all(fleet.views[model].covers for model in trigger.scope)
        for trigger in triggers
    )


def within_deadline(pending: Mapping[Urgency, Pending], now_ms: int) -> dict[Urgency, Pending]:
    """Requests whose answer is not overdue."""
    return {
        urgency: one
        for urgency, one in pending.items()
        if now_ms - one.request.at_ms < GIVE_UP_MS[urgency]
    }


def managed_first(scope: Collection[str], fleet: TickFleet, advise: bool) -> tuple[str, ...]:
    """The models of `scope` to plan together: the managed models, or with `advise` the recommended
    models; the other kind if there are none. The kinds are planned separately, because
    recommendations must not take capacity from managed models."""
    asked = [service for service in fleet.cluster.services if service.model in scope]
    some = [service for service in asked if service.managed is not advise]
    return tuple(service.model for service in some or asked)


def _request(
    number: int, urgency: Urgency, fleet: TickFleet, scope: tuple[str, ...]
) -> PlanRequest:
    demands = []
    for service in fleet.cluster.services:
        state = fleet.models[service.model]
        view = fleet.views[service.model]
        rate = view.required_req_per_s
        if view.covers:
            # The tolerance of `covers` applies here too, because a request for a new evaluation
            # alone must not change counts.
            rate = min(view.kept_req_per_s * (1.0 - SLIVER), view.planned_req_per_s)
        demands.append(
            Demand(
                service.model,
                rate / state.capacity.derate,
                state.estimate.lengths,
                state.estimate.arrival_cv,
                state.estimate.mix,
            )
        )
    return PlanRequest(
        number=number,
        urgency=urgency,
        at_ms=fleet.now_ms,
        demands=tuple(demands),
        fleet=tuple(sorted(_running_counts(fleet, scope).items())),
        rented_nodes=_rented(fleet),
        unusable_nodes=_unusable(fleet),
        obtainable=tuple(sorted(obtainable_nodes(fleet).items())),
        leaving_gpus=_leaving_gpus(fleet),
        prices_usd_per_h=tuple(sorted(fleet.inputs.supply.prices_usd_per_h().items())),
        scope=scope,
        rooms=tuple(
            (service.model, known.rooms)
            for service in fleet.cluster.services
            if (known := fleet.models[service.model].learnt).rooms
        ),
        floors=tuple((s.model, s.min_instances) for s in fleet.cluster.services if s.floors),
    )


def _running_counts(fleet: TickFleet, scope: tuple[str, ...]) -> Counter[str]:
    """The fleet at the start of a plan for `scope`: existing groups, and the last recommendation
    for recommended models."""
    others = {s.model: s for s in fleet.cluster.services if not s.managed}
    recommended = others.keys() & set(scope)
    counts = Counter(
        group.combo_id
        for group in fleet.groups
        if group.model not in recommended and fleet.sight.counts(group)
    )
    for model, service in others.items():
        state = fleet.models[model]
        counts.update(
            dict(state.advisory.recommended)
            if model in recommended
            else unmanaged_counts(service, state)
        )
    return counts


def _rented(fleet: TickFleet) -> tuple[tuple[str, int], ...]:
    """Nodes on the bill per pool, including nodes of unmanaged servers. Unusable nodes count only
    if they hold a group that counts as capacity."""
    shut = unusable_nodes(fleet)
    carrying = nodes_of(group for group in fleet.groups if fleet.sight.counts(group))
    owned = {pool.id for pool in fleet.cluster.pools if pool.market is Market.OWNED}
    rented = Counter(
        pool
        for node, pool in nodes_of(fleet.groups).items()
        if pool not in owned and (node in carrying or node not in shut)
    )
    theirs = Counter[str]()
    for service in fleet.cluster.services:
        theirs.update(unmanaged_counts(service, fleet.models[service.model]))
    for pool, nodes in planned_nodes(theirs, fleet.combos, fleet.cluster).items():
        if pool not in owned:
            rented[pool] += nodes
    return tuple(sorted(rented.items()))


def _leaving_gpus(fleet: TickFleet) -> tuple[tuple[str, int], ...]:
    """GPUs of leaving groups per pool, except those on unusable nodes without a group that counts
    as capacity, and those that a counting group gets afterwards."""
    replaced = {group.replaces for group in fleet.groups if group.replaces}
    leaving = [
        group
        for group in fleet.groups
        if not fleet.sight.counts(group) and group.name not in replaced
    ]
    if not leaving:
        return ()
    carrying = nodes_of(group for group in fleet.groups if fleet.sight.counts(group))
    shut = unusable_nodes(fleet)
    found: Counter[str] = Counter()
    for placed in (placed for group in leaving for placed in group.placed):
        if placed.node in carrying or placed.node not in shut:
            found[placed.pool] += len(placed.gpus)
    return tuple(sorted(found.items()))


def _unusable(fleet: TickFleet) -> tuple[tuple[str, int], ...]:
    """Number of declared nodes per pool on which nothing may be launched and no group counts as
    capacity."""
    carrying = nodes_of(group for group in fleet.groups if fleet.sight.counts(group))
    shut = unusable_nodes(fleet)
    found: list[tuple[str, int]] = []
    for pool in fleet.cluster.pools:
        if pool.id in fleet.sight.shut_pools:
            out = sum(node not in carrying for node in node_ids(pool))
        elif shut:
            out = sum(node in shut and node not in carrying for node in node_ids(pool))
        else:
            out = 0
        if out:
            found.append((pool.id, out))
    return tuple(found)
