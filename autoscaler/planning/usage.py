"""What combos take: slices per pool, and whether they stand on spot nodes.

Owns this arithmetic. Knows nothing of what is free (`planning.room`) or of prices.
"""

from __future__ import annotations

from collections.abc import Sequence

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.planning.room import NO_BLOCKS, Blocks


def is_spot(combo: Combo) -> bool:
    """Whether losing spot nodes would take this combo away."""
    return any(member.pool.endswith(f"/{Market.SPOT}") for member in combo.members)


def slices_by_pool(combo: Combo) -> dict[str, Blocks]:
    """Slices that one `combo` takes, per pool, as counts by size."""
    wanted: dict[str, list[int]] = {}
    for member in combo.members:
        counts = wanted.setdefault(member.pool, [0, 0, 0, 0])
        counts[SLICE_SIZES.index(member.gpus)] += member.count
    return {pool: (c[0], c[1], c[2], c[3]) for pool, c in wanted.items()}


def total_slices(combos: Sequence[Combo], counts: Sequence[int]) -> dict[str, Blocks]:
    """Slices that `counts` of `combos` take together, per pool."""
    total: dict[str, Blocks] = {}
    for combo, count in zip(combos, counts, strict=True):
        for pool, blocks in slices_by_pool(combo).items():
            old = total.get(pool, NO_BLOCKS)
            total[pool] = (
                old[0] + count * blocks[0],
                old[1] + count * blocks[1],
                old[2] + count * blocks[2],
                old[3] + count * blocks[3],
            )
    return total
