"""GPUs for the groups of a wave: free ones, those of further rented nodes, or those of the groups
that leave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from autoscaler.apply.fleet_changes import FleetChanges
from autoscaler.domain.cluster import Cluster, Market, Service
from autoscaler.domain.reason import Reason
from autoscaler.estimate.change_point import sizing_rate
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.capacity_and_cost import raw_req_per_s
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.versions import Version
from autoscaler.state.model_view import RATE_EPSILON, SLIVER, ModelView
from autoscaler.state.rollout_state import RolloutState
from topics.reason_codes import ReasonCode


@dataclass(frozen=True, slots=True)
class Placement:
    """A group and its replacement, which has the field `replaces` if it gets the same GPUs."""

    old: ServingGroup
    new: ServingGroup


def place_wave(
    old: Sequence[ServingGroup],
    own: Iterable[ServingGroup],
    goal: Version,
    service: Service,
    state: RolloutState,
    changes: FleetChanges,
) -> list[Placement] | Reason | float:
    """Replacements of `old` in version `goal`. own: all groups of the model.

    Returns a reason if no replacement can start now, or the capacity in requests/s of a bridge that
    the planner must add first.
    """
    fleet = changes.fleet
    view = fleet.views[service.model]
    nothing = {pool.id: 0 for pool in changes.site.cluster.pools}
    found = [
        Placement(group, new)
        for group in old
        if (new := _elsewhere(group, goal, service, changes, nothing)) is not None
    ]
    limits = _Limits(own, view, fleet)
    found = found or _all_in_place(old, goal, service, changes, limits.spares)
    if found:
        return found
    if service.rollout.spare == "rent":
        for group in old[:1]:
            new = _elsewhere(group, goal, service, changes, changes.site.obtainable)
            if new is not None:
                return [Placement(group, new)]
        if _may_bridge(service, view, fleet.cluster):
            if not state.bridge_req_per_s:
                derate = view.state.capacity.derate
                return limits.largest_req_per_s * service.utilization * derate
            if not view.covers:
                return Reason(ReasonCode.NO_ROOM)
    is_late = fleet.now_ms - state.began_ms >= 1000 * service.rollout.within_s
    found = _all_in_place(
        old, goal, service, changes, lambda group: limits.permits(group, is_late=is_late)
    )
    return found or Reason(ReasonCode.NO_SLACK)


def _may_bridge(service: Service, view: ModelView, cluster: Cluster) -> bool:
    """Whether the planner may rent a bridge: nodes for rent exist, and it has not just failed to
    find capacity."""
    if service.rollout.spare != "rent":
        return False
    if view.now_ms < view.state.infeasibility.retry_at_ms:
        return False
    return any(
        pool.market is not Market.OWNED
        and pool.max_nodes > 0
        and (not service.regions or pool.region in service.regions)
        for pool in cluster.pools
    )


class _Limits:
    """Capacity of ready groups that may leave before its replacement serves, in raw requests/s. A
    permitted group counts as gone."""

    def __init__(self, own: Iterable[ServingGroup], view: ModelView, fleet: TickFleet) -> None:
        self._view = view
        ready = [g for g in own if g.counts and fleet.sight.views[g.name].all_ready]
        self._rates = {group.name: raw_req_per_s([group], fleet.combos) for group in ready}
        self._left = sum(self._rates.values())

    @property
    def largest_req_per_s(self) -> float:
        return max(self._rates.values(), default=0.0)

    def spares(self, group: ServingGroup) -> bool:
        """Whether `group` leaves as much capacity as the target needs."""
        rate = self._rates.get(group.name, 0.0)
        needed = self._view.raw_for(self._view.state.target.req_per_s)
        tolerance = SLIVER * (needed + rate) + RATE_EPSILON  # that of `ModelView.covers`
        return rate <= 0.0 or self._gone(rate, self._left - rate >= needed - tolerance)

    def permits(self, group: ServingGroup, *, is_late: bool) -> bool:
        """Whether `max_disruption` permits `group` to leave, and the rest serves the present rate
        with half of the declared margin. A rollout that is late needs no margin."""
        view, rate = self._view, self._rates.get(group.name, 0.0)
        after = self._left - rate
        leaving = sum(self._rates.values()) - after
        if leaving > view.service.max_leaving_req_per_s(self._rates.values()) + RATE_EPSILON:
            return False
        busy = sizing_rate(view.demand, view.policy).req_per_s
        margin = (1.0 + view.service.utilization) / 2.0
        serves = after * view.state.capacity.derate * margin >= busy - RATE_EPSILON
        return self._gone(rate, is_late or serves)

    def _gone(self, rate: float, permitted: bool) -> bool:
        if permitted:
            self._left -= rate
        return permitted


def _all_in_place(
    old: Iterable[ServingGroup],
    goal: Version,
    service: Service,
    changes: FleetChanges,
    may_leave: Callable[[ServingGroup], bool],
) -> list[Placement]:
    found = []
    for group in old:
        new = in_place(group, goal, service, changes) if may_leave(group) else None
        if new is not None:
            found.append(Placement(group, new))
    return found


def _elsewhere(
    group: ServingGroup,
    goal: Version,
    service: Service,
    changes: FleetChanges,
    obtainable: Mapping[str, int],
) -> ServingGroup | None:
    """A replacement of `group` on free GPUs: of owned nodes, of nodes on the bill, and of
    `obtainable` further nodes by pool."""
    site = changes.site
    started = _started(group, goal, service, replace(site, obtainable=obtainable), changes.fleet)
    if started is None:
        return None
    new, after = started
    rents = obtainable is site.obtainable
    changes.site = after if rents else replace(after, obtainable=site.obtainable)
    return new


def in_place(
    group: ServingGroup, goal: Version, service: Service, changes: FleetChanges
) -> ServingGroup | None:
    """A replacement of `group` on its own GPUs, which waits until they are free."""
    site = changes.site
    used = dict(site.used)
    for placed in group.placed:
        used[placed.node] = used.get(placed.node, frozenset()) - set(placed.gpus)
    nodes = {placed.node for placed in group.placed}
    others = {node for node in used if node not in nodes}
    nothing = {pool.id: 0 for pool in site.cluster.pools}
    inside = replace(site, used=used, obtainable=nothing, shut=frozenset(site.shut) | others)
    started = _started(group, goal, service, inside, changes.fleet)
    if started is None:
        return None
    new, after = started
    changes.site = replace(site, serial=after.serial)
    return replace(new, replaces=group.name)


def _started(
    group: ServingGroup, goal: Version, service: Service, site: FreeCapacity, fleet: TickFleet
) -> tuple[ServingGroup, FreeCapacity] | None:
    if group.combo_id not in fleet.combos:
        return None
    made = start({group.combo_id: 1}, fleet.combos, service, site, fleet.now_ms, goal)
    return (made.groups[0], made.site) if made.groups else None
