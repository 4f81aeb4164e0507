"""Cost attribution: divides the price of whole nodes among the models on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.combo import Combo


def usd_per_h_by_model(
    counted: Iterable[tuple[Combo, int]],
    nodes_usd_per_h: Mapping[str, float],
    taken_gpus: Mapping[str, int],
) -> dict[str, float]:
    """USD/h of every model: for each pool, the price of all its nodes, divided in proportion to the
    GPUs used.

    The models on a half-empty node pay for the whole node, so the shares of all models add up to
    the bill. taken_gpus: per pool, GPUs on these nodes that other models use; their part of the
    price is attributed to none of these models.
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
