"""Placement of new instances: aligned blocks of GPUs on nodes, best fit first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.node_names import node_ids
from autoscaler.domain.workload import Phase
from autoscaler.rollout.multi_node import joined
from autoscaler.rollout.serving_group import Placed, ServingGroup
from topics.fleet import InstanceState, Status

Used = dict[str, frozenset[int]]
"""Node -> indices of the GPUs in use. A missing node is empty."""

_LETTER = {Phase.PREFILL: "p", Phase.DECODE: "d", Phase.AGGREGATED: "a"}
_GONE = (InstanceState.STOPPED, InstanceState.FAILED, InstanceState.ASLEEP)


def used_gpus(groups: Iterable[ServingGroup], statuses: Iterable[Status] = ()) -> Used:
    """GPUs in use by `groups` and by further instances that executors report."""
    taken: dict[str, set[int]] = {}
    for group in groups:
        for placed in group.placed:
            taken.setdefault(placed.node, set()).update(placed.gpus)
    for status in statuses:
        for seen in status.instances:
            if seen.state not in _GONE:
                taken.setdefault(status.node, set()).update(seen.gpus)
    return {node: frozenset(gpus) for node, gpus in taken.items() if gpus}


def place(
    combo: Combo,
    serial: int,
    cluster: Cluster,
    used: Mapping[str, frozenset[int]],
    obtainable: Mapping[str, int],
    shut: Collection[str] = (),
) -> tuple[tuple[Placed, ...], Used] | None:
    """Place one `combo`. Returns its instances and the GPUs in use afterwards; None without room.

    Larger slices are placed first. Each slice gets the smallest free aligned block that holds it.
    Nodes on the bill are preferred to new nodes of the pool.
    """
    after: Used = dict(used)
    placed: list[tuple[Placed, ComboMember]] = []
    rented: dict[str, int] = {}
    members = sorted(combo.members, key=lambda m: (-m.gpus, m.phase, m.pool))
    for member in members:
        pool = cluster.pool(member.pool)
        for _ in range(member.count):
            new_left = obtainable.get(pool.id, pool.max_nodes) - rented.get(pool.id, 0)
            if new_left > 0:
                new_left = min(new_left, _left_of_both(cluster, pool, after))
            spot = _find(pool, member.gpus, after, new_left, shut)
            if spot is None:
                return None
            node, start = spot
            if node not in after and pool.market is not Market.OWNED:
                rented[pool.id] = rented.get(pool.id, 0) + 1
            gpus = tuple(range(start, start + member.gpus))
            after[node] = after.get(node, frozenset()) | frozenset(gpus)
            letter = "c" if member.deployment else _LETTER[member.phase]
            name = f"{combo.model}-{serial}-{letter}{len(placed)}"
            name += f"+{member.deployment}" if member.deployment else ""
            placed.append((Placed(name, member.phase, node, pool.id, gpus), member))
    return joined(placed, cluster), after


def _left_of_both(cluster: Cluster, pool: Pool, used: Mapping[str, frozenset[int]]) -> int:
    """Number of nodes that may still be added under the limit that `pool` shares with its other
    markets."""
    if not pool.max_of_both:
        return pool.max_nodes
    pools = cluster.pools_by_shared_limit()[pool.region, pool.name]
    return pool.max_of_both - sum(node in used for p in pools for node in node_ids(p))


def _find(
    pool: Pool, gpus: int, used: Mapping[str, frozenset[int]], new_left: int, shut: Collection[str]
) -> tuple[str, int] | None:
    best: tuple[int, int, str, int] | None = None
    for order, node in enumerate(node_ids(pool)):
        if node in shut:
            continue
        taken = used.get(node, frozenset())
        paid = bool(taken) or pool.market is Market.OWNED
        if len(taken) + gpus > pool.per_node or (not paid and new_left <= 0):
            continue
        for start, size in _blocks(pool, taken):
            # Prefer nodes on the bill to new nodes, then small blocks to large ones, then the order
            # of nodes.
            rank = (size if paid else 1000 + size, order, node, start)
            if size >= gpus and (best is None or rank < best):
                best = rank
        if best is not None and best[0] == gpus:
            break  # no later node can have a smaller block
    return (best[2], best[3]) if best else None


def _blocks(pool: Pool, taken: frozenset[int]) -> Iterable[tuple[int, int]]:
    """(first index, size) of the largest free aligned blocks."""
    size = pool.largest_slice
    todo = [(start, size) for start in reversed(range(0, pool.per_node, size))]
    while todo:
        start, size = todo.pop()
        inside = sum(1 for gpu in taken if start <= gpu < start + size)
        if inside == 0:
            yield start, size
        elif inside < size:
            half = size // 2
            todo += [(start + half, half), (start, half)]
