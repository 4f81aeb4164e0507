"""Status of the ranks of multi-node instances.

Defines the JSON names of a gang (a multi-node instance) in `/v1/status`, which are stable because
other programs read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoscaler.rollout.serving_group import Placed, ServingGroup, fleet_view
from topics.fleet import ObservedInstance, Status


def gang_facts(
    groups: Iterable[ServingGroup], statuses: Mapping[str, Status]
) -> list[dict[str, Any]]:
    """Every gang with its ranks in order. state: as last reported by the executor, "" if no
    executor reported it."""
    seen = fleet_view(statuses).instances
    found = []
    for group in groups:
        gangs: dict[str, list[Placed]] = {}
        for placed in group.placed:
            if placed.gang is not None:
                gangs.setdefault(placed.gang.gang, []).append(placed)
        for name, ranks in gangs.items():
            facts = [_rank(placed, seen) for placed in ranks]
            facts.sort(key=lambda rank: rank["rank"])
            found.append(
                {"gang": name, "model": group.model, "life": str(group.life), "ranks": facts}
            )
    return found


def _rank(placed: Placed, seen: Mapping[str, ObservedInstance]) -> dict[str, Any]:
    assert placed.gang is not None  # noqa: S101 - the caller looked
    stage, observed = placed.gang.stages[placed.gang.rank], seen.get(placed.instance)
    return {
        "rank": placed.gang.rank,
        "instance": placed.instance,
        "node": placed.node,
        "gpu": stage.gpu,
        "gpus": stage.gpus,
        "layers": stage.layers,
        "state": str(observed.state) if observed is not None else "",
        "reason": observed.reason if observed is not None else "",
    }
