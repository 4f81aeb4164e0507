"""What combos take: slices per pool, and whether they stand on spot nodes.

Owns this arithmetic. Knows nothing of what is free (`planning.room`) or of prices.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.planning.room import Blocks


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
