"""Nodes that a plan rents: an exchange of what runs waits for room on them.

A plan packs combos as tightly as can be, while what it replaces still stands where it was. Placed
at once, a combo whose place on a node is taken until another one leaves would have a node rented
for it, which is given back minutes later. Owns the count of nodes that a plan has and the site on
which no more of them are rented. Pure.
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
    """Nodes that `counts` (combo id -> count) fill at the tightest, per pool that they use."""
    return fewest_nodes(cluster, [(combos[i], n) for i, n in counts.items() if i in combos])


def within_plan(
    site: FreeCapacity, planned: Mapping[str, int], groups: Iterable[ServingGroup]
) -> FreeCapacity:
    """`site` with no further node of a pool beyond those that are planned. groups: all that stand
    somewhere, but for those of the model to be placed that leave for it: they are replaced beside.
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


def lifted(after: FreeCapacity, inside: FreeCapacity, before: FreeCapacity) -> FreeCapacity:
    """`after`, which came of `inside`, with all that can be had `before` but for what was taken."""
    taken = {pool: n - after.obtainable[pool] for pool, n in inside.obtainable.items()}
    left = {pool: max(0, n - taken.get(pool, 0)) for pool, n in before.obtainable.items()}
    return replace(after, obtainable=left)
