"""Room in pools: free aligned blocks of GPUs on nodes, and what a set of slices takes of it.

Owns the arithmetic of packing power-of-two slices. Knows no models and no prices of combos.

Slices of 1, 2, 4 and 8 GPUs sit on aligned blocks. They fit exactly if, for every size s, the
GPUs wanted in slices of at least s do not exceed the GPUs free in blocks of at least s: larger
slices first, each splits at most blocks that nothing larger needs. These are linear rows, so
the same test serves a table look-up and an integer program.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from autoscaler.domain.checks import InvalidValue, whole
from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.slices import SLICE_SIZES

Blocks = tuple[int, int, int, int]
"""Counts by size, in the order of SLICE_SIZES: 1, 2, 4 and 8 GPUs."""

NO_BLOCKS: Blocks = (0, 0, 0, 0)
_SIZES_DOWN = tuple(reversed(range(len(SLICE_SIZES))))


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """What is free in one pool.

    blocks: free aligned blocks on nodes that are paid for anyway (owned, or rented already), by
    size. new_nodes: nodes that may still be rented. node_usd_per_h: price of one of those.
    """

    per_node: int
    blocks: Blocks
    new_nodes: int
    node_usd_per_h: float

    def __post_init__(self) -> None:
        for size, count in zip(SLICE_SIZES, self.blocks, strict=True):
            whole(f"free blocks of {size} GPUs", count, 0, 10**9)
        whole("new nodes", self.new_nodes, 0, 10**9)

    @property
    def free_gpus(self) -> int:
        """GPUs free at most, new nodes included."""
        paid = sum(size * count for size, count in zip(SLICE_SIZES, self.blocks, strict=True))
        return paid + self.per_node * self.new_nodes


Room = Mapping[str, PoolRoom]
"""Pool id -> what is free in it. A pool that is missing has nothing free."""


def free_blocks(per_node: int, used: Collection[int]) -> Blocks:
    """Free aligned blocks of a node of `per_node` GPUs whose indices `used` are taken.

    Example: index 0 of 4 taken leaves one block of 1 and one of 2.
    """
    taken = set(used)
    bad = sorted(index for index in taken if not 0 <= index < per_node)
    if bad:
        raise InvalidValue("used GPU index", bad[0], f"0 to {per_node - 1}")
    counts = [0, 0, 0, 0]

    def split(start: int, size: int) -> None:
        inside = sum(start <= index < start + size for index in taken)
        if inside == 0:
            counts[SLICE_SIZES.index(size)] += 1
        elif inside < size:
            split(start, size // 2)
            split(start + size // 2, size // 2)

    split(0, per_node)
    return counts[0], counts[1], counts[2], counts[3]


def pool_room(
    pool: Pool, used: Iterable[Collection[int]] = (), obtainable: int | None = None
) -> PoolRoom:
    """Room of `pool`: `used` has, per node that is up, the GPU indices taken on it.

    obtainable: how many more nodes can be had at this moment (an availability feed), at most what
    is declared. Owned nodes that are not in `used` are empty and paid for.
    """
    nodes = [free_blocks(pool.per_node, indices) for indices in used]
    rest = max(0, pool.max_nodes - len(nodes))
    if obtainable is not None:
        rest = min(rest, max(0, obtainable))
    if pool.market is Market.OWNED:
        empty = free_blocks(pool.per_node, ())
        nodes += [(empty[0] * rest, empty[1] * rest, empty[2] * rest, empty[3] * rest)]
        rest = 0
    blocks = (
        sum(node[0] for node in nodes),
        sum(node[1] for node in nodes),
        sum(node[2] for node in nodes),
        sum(node[3] for node in nodes),
    )
    return PoolRoom(pool.per_node, blocks, rest, pool.price_usd_per_h)


def fits(wanted: Blocks, free: Blocks) -> bool:
    """Whether slices `wanted` (counts by size) can sit on free blocks together."""
    need = have = 0
    for index in _SIZES_DOWN:
        need += SLICE_SIZES[index] * wanted[index]
        have += SLICE_SIZES[index] * free[index]
        if need > have:
            return False
    return True


def new_nodes_needed(wanted: Blocks, room: PoolRoom) -> int:
    """Nodes to rent so that `wanted` fits, paid blocks filled first; InvalidValue if it cannot.

    Each further node offers one block of the largest size, so every row of `fits` says how many
    are needed at least, and the largest of these is enough.
    """
    need = have = 0
    nodes = 0
    for index in _SIZES_DOWN:
        need += SLICE_SIZES[index] * wanted[index]
        have += SLICE_SIZES[index] * room.blocks[index]
        if SLICE_SIZES[index] > room.per_node and wanted[index]:
            raise InvalidValue(
                "slice", SLICE_SIZES[index], f"at most {room.per_node} GPUs of a node"
            )
        nodes = max(nodes, -(-(need - have) // room.per_node))
    if nodes > room.new_nodes:
        raise InvalidValue("slices wanted", wanted, f"at most {room.new_nodes} new nodes")
    return nodes


def take(wanted: Blocks, free: Blocks) -> Blocks:
    """What is left of `free` blocks after `wanted`, smallest sufficient block first.

    Precondition: `fits(wanted, free)`; InvalidValue otherwise.
    """
    left = list(free)
    for index in _SIZES_DOWN:
        for _ in range(wanted[index]):
            block = next((i for i in range(index, len(left)) if left[i]), None)
            if block is None:
                raise InvalidValue("slices wanted", wanted, f"what fits {free}")
            left[block] -= 1
            for smaller in range(index, block):
                left[smaller] += 1
    return left[0], left[1], left[2], left[3]
