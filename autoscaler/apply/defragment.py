"""Moves a group to nodes that other groups use, so that its own node can be released. This is
needed because a plan assumes that groups are packed tightly, but the real placement depends on the
nodes that were free at each start and on later removals. At most one group per model moves; the
total capacity stays the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.apply.model_change import AppliedChange
from autoscaler.domain.cluster import Market, Service
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.waves import retire
from autoscaler.state.model_state import ModelState


def defragment(
    service: Service,
    counting: Iterable[ServingGroup],
    groups: Mapping[str, ServingGroup],
    site: FreeCapacity,
    state: ModelState,
    fleet: TickFleet,
) -> AppliedChange | None:
    """The move that frees the most expensive node; None if no group of the model fits on other
    nodes on the bill. counting: the model's groups that count as capacity; groups: all groups of
    all models.
    """
    if fleet.views[service.model].frozen is not None:
        return None
    tenants = Counter(node for group in groups.values() for node in _nodes(group))
    best: tuple[float, ServingGroup, ServingGroup, FreeCapacity] | None = None
    for group in counting:
        usd_per_h = _freed_usd_per_h(group, tenants, fleet)
        if usd_per_h <= 0.0 or (best is not None and usd_per_h <= best[0]):
            continue
        # Exclude new nodes and the group's present nodes as destinations.
        nothing = {pool.id: 0 for pool in site.cluster.pools}
        shut = frozenset(site.shut) | frozenset(_nodes(group))
        inside = replace(site, obtainable=nothing, shut=shut)
        moved = start({group.combo_id: 1}, fleet.combos, service, inside, fleet.now_ms)
        if moved.groups:
            best = usd_per_h, group, moved.groups[0], moved.site
    if best is None:
        return None
    usd_per_h, old, new, after = best
    site = replace(after, obtainable=site.obtainable, shut=site.shut)
    going = retire(old, fleet.now_ms, (new.name,))
    now = {**groups, new.name: new, going.name: going}
    return AppliedChange(now, site, state, (new,), (), (going,), Counter(), -usd_per_h, None)


def _freed_usd_per_h(group: ServingGroup, tenants: Mapping[str, int], fleet: TickFleet) -> float:
    """Price of the group's nodes in USD/h; 0 if the group shares a node, is not ready, or uses an
    owned or undeclared pool."""
    view = fleet.sight.views[group.name]
    if (
        group.life is not Life.ACTIVE
        or group.switch
        or not view.all_ready
        or group.combo_id not in fleet.combos
    ):
        return 0.0
    rented = {p.id: p.price_usd_per_h for p in fleet.cluster.pools if p.market is not Market.OWNED}
    pools = {placed.node: placed.pool for placed in group.placed}
    # An undeclared pool has no price.
    if any(tenants[node] > 1 or pool not in rented for node, pool in pools.items()):
        return 0.0
    return sum(rented[pool] for pool in pools.values())


def _nodes(group: ServingGroup) -> set[str]:
    return {placed.node for placed in group.placed}
