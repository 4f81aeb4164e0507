"""Moves groups to nodes that other groups use, so that their own node can be released.

A plan assumes that groups are packed tightly, but the real placement depends on the nodes that were
free at each start and on later removals. Each new group serves before the old one leaves, so the
total capacity stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from autoscaler.apply.decision import decision_about
from autoscaler.apply.fleet_changes import FleetChanges
from autoscaler.domain.cluster import Market, Mode, Pool
from autoscaler.domain.reason import Reason
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.versions import version_of
from autoscaler.rollout.waves import retire
from autoscaler.sizing.prediction_drift import expected_s
from topics.reason_codes import ReasonCode


def defragment(changes: FleetChanges, scope: Collection[str]) -> int:
    """Empty rented nodes, expensive pools first, if all their groups fit on other nodes on the
    bill. Only groups of the models in `scope` move. Returns the number of groups that move."""
    fleet = changes.fleet
    acting = {s.model for s in fleet.cluster.services if s.mode is Mode.ACT}
    models = {m for m in acting.intersection(scope) if fleet.views[m].frozen is None}

    def may_move(group: ServingGroup) -> bool:
        view = fleet.sight.views.get(group.name)  # a group without a view was just placed
        return (
            group.model in models
            and group.switch is None
            and view is not None
            and view.all_ready
            and fleet.sight.counts(group)
            and group.combo_id in fleet.combos
        )

    rented = (pool for pool in fleet.cluster.pools if pool.market is not Market.OWNED)
    dear_first = sorted(rented, key=lambda pool: (-pool.price_usd_per_h, pool.id))
    return sum(_empty_node(pool, changes, may_move) for pool in dear_first)


def _empty_node(pool: Pool, changes: FleetChanges, may_move: Callable[[ServingGroup], bool]) -> int:
    """Empty the node of `pool` with the fewest GPUs in use whose groups fit on other nodes. Returns
    the number of its groups."""
    tenants: dict[str, list[ServingGroup]] = {}
    for group in changes.groups.values():
        for node in {placed.node for placed in group.placed if placed.pool == pool.id}:
            tenants.setdefault(node, []).append(group)
    used = {node: len(changes.site.used.get(node, ())) for node in tenants}
    free = sum(pool.per_node - gpus for gpus in used.values())
    for node in sorted(tenants, key=lambda node: (used[node], node)):
        stays = [group for group in tenants[node] if group.life is Life.ACTIVE]
        fits = used[node] <= free - (pool.per_node - used[node])
        if not stays or not fits or not all(map(may_move, stays)):
            continue
        moved = _moved(stays, node, changes)
        if moved is None:
            continue
        new, changes.site = moved
        last = len(stays) - 1
        for index, (old, after) in enumerate(zip(stays, new, strict=True)):
            _move(old, after, pool, -pool.price_usd_per_h if index == last else 0.0, changes)
        return len(stays)
    return 0


def _moved(
    groups: Sequence[ServingGroup], node: str, changes: FleetChanges
) -> tuple[list[ServingGroup], FreeCapacity] | None:
    """Copies of `groups` on nodes on the bill except `node`, and the free capacity after them; None
    if they do not fit."""
    site, fleet = changes.site, changes.fleet
    nothing = {pool.id: 0 for pool in site.cluster.pools}
    inside = replace(site, obtainable=nothing, shut=frozenset(site.shut) | {node})
    new: list[ServingGroup] = []
    for group in groups:
        service = fleet.cluster.service(group.model)
        version = version_of(group)
        placed = start({group.combo_id: 1}, fleet.combos, service, inside, fleet.now_ms, version)
        if not placed.groups:
            return None
        new += placed.groups
        inside = placed.site
    return new, replace(inside, obtainable=site.obtainable, shut=site.shut)


def _move(
    old: ServingGroup, new: ServingGroup, pool: Pool, delta_usd_per_h: float, changes: FleetChanges
) -> None:
    """Retire `old` in favour of `new`, with a decision about it. delta_usd_per_h: change of the
    bill."""
    fleet, model = changes.fleet, old.model
    state = changes.models[model]
    changes.groups[new.name] = new
    changes.groups[old.name] = retire(old, fleet.now_ms, (new.name,))
    why = (
        Reason(ReasonCode.MOVED_TOGETHER, model, (pool.id,)),
        Reason(ReasonCode.COST, quantities=(delta_usd_per_h,)),
        Reason(
            ReasonCode.SERVING_IN,
            quantities=(expected_s(state, fleet.combos[new.combo_id].start_s),),
        ),
    )
    decision = decision_about(fleet, model, "replan", why, state, True, delta_usd_per_h)
    changes.decisions.append(decision)
