"""Places the combos of a fleet over time on nodes, and bills the nodes.

An instance stays on its GPUs from its launch to its stop. A node is billed while it has at least
one instance. The program over counts assumes that instances can move. This placement does not move
them, so its bill is attainable, but may be slightly higher.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Market, Pool
from autoscaler.simulation.hindsight import demand_spans


@dataclass(frozen=True, slots=True)
class Stay:
    """A slice of `gpus` GPUs of a node of `pool`, taken from launch_s to stop_s."""

    pool: str
    gpus: int
    launch_s: float
    stop_s: float


@dataclass(slots=True)
class _Node:
    """The slices that one node has at each time. blocks: (first GPU, GPUs, stop_s) of each slice.
    spans: (launch_s, stop_s) of each slice."""

    per_node: int
    blocks: list[tuple[int, int, float]] = field(default_factory=list)
    spans: list[tuple[float, float]] = field(default_factory=list)

    def busy_until_s(self) -> float:
        return max((stop_s for _, stop_s in self.spans), default=float("-inf"))

    def block_at(self, at_s: float, gpus: int) -> tuple[int, int] | None:
        """(size, first GPU) of the smallest free aligned block that holds `gpus`."""
        self.blocks = [block for block in self.blocks if block[2] > at_s]
        found: tuple[int, int] | None = None
        whole = self.per_node & -self.per_node
        todo = [(first, whole) for first in range(0, self.per_node, whole)]
        while todo:
            first, size = todo.pop()
            inside = any(at < first + size and first < at + n for at, n, _ in self.blocks)
            if not inside and size >= gpus and (found is None or (size, first) < found):
                found = size, first
            elif inside and size // 2 >= gpus:
                todo += [(first, size // 2), (first + size // 2, size // 2)]
        return found

    def billed(self) -> list[tuple[float, float]]:
        """The spans with at least one slice, joined."""
        joined: list[tuple[float, float]] = []
        for launch_s, stop_s in sorted(self.spans):
            if joined and launch_s <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(joined[-1][1], stop_s)
            else:
                joined.append((launch_s, stop_s))
        return joined


def bill_usd(
    stays: Sequence[Stay], pools: Sequence[Pool], market: demand_spans.Market
) -> float | None:
    """The bill of the nodes that hold `stays`; None if this placement does not fit the limits on
    nodes."""
    known = {pool.id: pool for pool in pools}
    nodes: dict[str, list[_Node]] = {pool.id: [] for pool in pools}
    for stay in sorted(stays, key=lambda s: (s.launch_s, -s.stop_s, -s.gpus, s.pool)):
        pool = known[stay.pool]
        chosen = _choose(nodes[pool.id], stay, pool)
        if chosen is None:
            if len(nodes[pool.id]) >= pool.max_nodes:
                return None
            chosen = _Node(pool.per_node)
            nodes[pool.id].append(chosen)
        found = chosen.block_at(stay.launch_s, stay.gpus)
        if found is None:
            return None
        chosen.blocks.append((found[1], stay.gpus, stay.stop_s))
        chosen.spans.append((stay.launch_s, stay.stop_s))
    spans = {pool: [span for one in mine for span in one.billed()] for pool, mine in nodes.items()}
    if any(_exceeds(spans[pool.id], market.nodes[pool.id]) for pool in pools):
        return None
    if not _fits_together(spans, known):
        return None
    return sum(
        market.usd(pool.id, launch_s, stop_s)
        for pool in pools
        if pool.market is not Market.OWNED
        for launch_s, stop_s in spans[pool.id]
    )


def _choose(nodes: Sequence[_Node], stay: Stay, pool: Pool) -> _Node | None:
    """The node whose time on the bill `stay` extends least; None: a new node. On owned nodes only
    the size of the free block matters."""
    best: tuple[float, int, int] | None = None
    length_s = stay.stop_s - stay.launch_s
    for index, node in enumerate(nodes):
        found = node.block_at(stay.launch_s, stay.gpus)
        if found is None:
            continue
        added_s = min(length_s, max(0.0, stay.stop_s - max(stay.launch_s, node.busy_until_s())))
        rank = (0.0 if pool.market is Market.OWNED else added_s, found[0], index)
        if best is None or rank < best:
            best = rank
    return None if best is None else nodes[best[2]]


def _exceeds(spans: Sequence[tuple[float, float]], most: demand_spans.Steps) -> bool:
    """Whether more nodes are on the bill at some time than `most` allows."""
    times = sorted({at for span in spans for at in span} | set(most.at_s[1:]))
    for begin_s, end_s in itertools.pairwise(times):
        held = sum(launch_s <= begin_s and end_s <= stop_s for launch_s, stop_s in spans)
        if held and held > min(value for value, _ in most.pieces(begin_s, end_s)):
            return True
    return False


def _fits_together(
    spans: Mapping[str, Sequence[tuple[float, float]]], pools: Mapping[str, Pool]
) -> bool:
    """Whether all pools together are within the limits on nodes that they share."""
    shared: dict[tuple[str, str], list[Pool]] = {}
    for pool in pools.values():
        if pool.max_of_both:
            shared.setdefault((pool.region, pool.name), []).append(pool)
    for members in shared.values():
        both = [span for pool in members for span in spans[pool.id]]
        limit = demand_spans.Steps((float("-inf"),), (float(members[0].max_of_both),))
        if _exceeds(both, limit):
            return False
    return True
