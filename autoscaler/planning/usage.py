"""What combos take: slices, and whether they stand on spot nodes.

Owns this arithmetic. Knows nothing of what is free or of prices.
"""

from __future__ import annotations

from collections import Counter

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo

_SPOT = f"/{Market.SPOT}"


def is_spot(combo: Combo) -> bool:
    """Whether losing spot nodes would take this combo away."""
    return any(member.pool.endswith(_SPOT) for member in combo.members)


def slices_of(combo: Combo) -> Counter[tuple[str, int]]:
    """How many slices one `combo` takes, by (pool, GPUs)."""
    taken: Counter[tuple[str, int]] = Counter()
    for member in combo.members:
        taken[member.pool, member.gpus] += member.count
    return taken
