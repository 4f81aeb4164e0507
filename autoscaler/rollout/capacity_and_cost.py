"""Capacity, nodes and cost of groups."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from autoscaler.domain.combo import Combo
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.serving_group import ServingGroup


def by_model(groups: Iterable[ServingGroup]) -> dict[str, list[ServingGroup]]:
    """The groups by model. Models without groups are left out, and the order of groups is kept."""
    found: dict[str, list[ServingGroup]] = {}
    for group in groups:
        found.setdefault(group.model, []).append(group)
    return found


def raw_req_per_s(groups: Iterable[ServingGroup], combos: Mapping[str, Combo]) -> float:
    """Capacity of `groups` in requests/s when all are ready, before utilization. Groups of unknown
    combos count as 0."""
    return sum(combos[g.combo_id].req_per_s for g in groups if g.combo_id in combos)


def nodes_of(groups: Iterable[ServingGroup]) -> dict[str, str]:
    """Node -> pool, for all nodes of `groups`."""
    return {placed.node: placed.pool for group in groups for placed in group.placed}


def billed_usd_per_h(
    groups: Collection[ServingGroup], sight: FleetSnapshot, prices_usd_per_h: Mapping[str, float]
) -> float:
    """Price of the nodes of `groups`; lost nodes are not on the bill."""
    nodes, unpaid = nodes_of(groups), sight.unpaid(groups)
    return sum(prices_usd_per_h.get(pool, 0.0) for n, pool in nodes.items() if n not in unpaid)


def rented_since_ms(groups: Iterable[ServingGroup]) -> dict[str, list[int]]:
    """Per pool, the time in ms at which one of `groups` first used each node."""
    first: dict[str, tuple[str, int]] = {}
    for group in groups:
        for placed in group.placed:
            known = first.get(placed.node)
            if known is None or group.created_ms < known[1]:
                first[placed.node] = (placed.pool, group.created_ms)
    found: dict[str, list[int]] = {}
    for pool, at_ms in first.values():
        found.setdefault(pool, []).append(at_ms)
    return found
