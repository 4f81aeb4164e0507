"""Sums over several combos: GPUs, slices and requests/s, and whether a combo uses spot nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo

_SPOT = f"/{Market.SPOT}"


def is_spot(combo: Combo) -> bool:
    """Whether the loss of spot nodes would stop this combo."""
    return any(member.pool.endswith(_SPOT) for member in combo.members)


def add_gpus(taken: Mapping[str, int], counted: Iterable[tuple[Combo, int]]) -> dict[str, int]:
    """GPUs per pool: `taken` plus the GPUs of the counted combos."""
    used = dict(taken)
    for combo, count in counted:
        for pool_id, gpus in combo.gpus_by_pool().items():
            used[pool_id] = used.get(pool_id, 0) + gpus * count
    return used


def req_per_s_of(counted: Iterable[tuple[Combo, int]]) -> float:
    """Capacity of the counted combos."""
    return sum(combo.req_per_s * count for combo, count in counted)


def slices_of(combo: Combo) -> Counter[tuple[str, int]]:
    """Number of slices that one `combo` takes, by (pool, GPUs)."""
    taken: Counter[tuple[str, int]] = Counter()
    for member in combo.members:
        taken[member.pool, member.gpus] += member.count
    return taken
