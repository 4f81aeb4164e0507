"""Whose bill it is: the price of whole nodes, shared out among the models on them.

Owns that arithmetic. Knows no plan: callers bring counts and what the nodes cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.combo import Combo


def usd_per_h_by_model(
    counted: Iterable[tuple[Combo, int]],
    nodes_usd_per_h: Mapping[str, float],
    taken_gpus: Mapping[str, int],
) -> dict[str, float]:
    """USD/h of every model: per pool the bill of all its nodes, by GPUs used.

    So a node that is half empty is paid for by who is on it, and the models' shares add up to the
    bill. taken_gpus: per pool, of others that stand on these nodes and bear their share.
    """
    used = dict(taken_gpus)
    mine: dict[str, dict[str, int]] = {}
    for combo, count in counted:
        for pool, gpus in combo.gpus_by_pool().items():
            used[pool] = used.get(pool, 0) + gpus * count
            taken = mine.setdefault(combo.model, {})
            taken[pool] = taken.get(pool, 0) + gpus * count
    each = {pool: nodes_usd_per_h.get(pool, 0.0) / gpus for pool, gpus in used.items() if gpus}
    return {
        model: sum(each.get(pool, 0.0) * gpus for pool, gpus in taken.items())
        for model, taken in mine.items()
    }
