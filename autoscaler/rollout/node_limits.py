"""Limit on rented nodes: a replacement waits for room on the nodes of the plan. A plan packs combos
tightly, but the combos that it replaces still occupy their nodes. Placing a new combo at once would
rent another node for the few minutes until an old combo has left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.planning.planning_problem import fewest_nodes
from autoscaler.rollout.capacity_and_cost import nodes_of
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import ServingGroup


def planned_nodes(
    counts: Mapping[str, int], combos: Mapping[str, Combo], cluster: Cluster
) -> dict[str, int]:
    """Smallest number of nodes per pool that hold `counts` (combo id -> count)."""
    return fewest_nodes(cluster, [(combos[i], n) for i, n in counts.items() if i in combos])


def within_plan(
    site: FreeCapacity, planned: Mapping[str, int], groups: Iterable[ServingGroup]
) -> FreeCapacity:
    """`site` without nodes beyond the planned ones.

    groups: all present groups except those of the placed model that are replaced, because these may
    overlap with their replacements.
    """
    rented = Counter(nodes_of(groups).values())
    left = {
        pool.id: min(
            site.obtainable.get(pool.id, pool.max_nodes),
            max(0, planned.get(pool.id, 0) - rented[pool.id]),
        )
        for pool in site.cluster.pools
    }
    return replace(site, obtainable=left)


def without_limit(after: FreeCapacity, inside: FreeCapacity, before: FreeCapacity) -> FreeCapacity:
    """`after` with the obtainable nodes of `before`, minus the nodes taken between `inside` and
    `after`."""
    taken = {pool: n - after.obtainable[pool] for pool, n in inside.obtainable.items()}
    left = {pool: max(0, n - taken.get(pool, 0)) for pool, n in before.obtainable.items()}
    return replace(after, obtainable=left)
