"""What must be left when something is lost: one node, or all spot nodes.

Owns these rows. Knows nothing of the other rows of the problem.

"Left" means: the capacity that remains holds the demand at full load (utilization 1).
"""

from __future__ import annotations

from typing import TypeVar

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.planning.arraybuilder import ArrayBuilder
from autoscaler.planning.problem import PlanningProblem
from autoscaler.planning.usage import is_spot

K = TypeVar("K")


def add_survival_rows(
    builder: ArrayBuilder[K],
    auxiliary: K,
    problem: PlanningProblem,
    service: Service,
    columns: list[tuple[int, Combo]],
    priority: int,
) -> None:
    """Rows for what `service` declares to survive; `columns` are those of its combos.

    all-spot: combos without a spot node hold the demand.
    one-node, for every pool p: with b_p the most that one node of p can carry of this model,
    either everything together holds the demand + b_p, or everything outside of p holds it. Both
    rows get a switched-off partner column, of which at most one may be on.
    """
    demand = problem.demands[service.model].req_per_s
    if demand <= 0.0 or service.survive == "none":
        return
    if service.survive == "all-spot":
        row = builder.demand("survive all-spot", service.model, demand, priority)
        for index, combo in columns:
            if not is_spot(combo):
                builder.serve(index, row, combo.req_per_s)
        return
    for pool in problem.cluster.pools:
        on_it = [(i, c) for i, c in columns if pool.id in c.gpus_by_pool()]
        if not on_it:
            continue
        lost = max(lost_with_one_node(combo, pool) for _, combo in on_it)
        whole = builder.demand("survive one-node", service.model, demand + lost, priority)
        outside = builder.demand("survive one-node", service.model, demand, priority)
        for index, combo in columns:
            builder.serve(index, whole, combo.req_per_s)
            if pool.id not in combo.gpus_by_pool():
                builder.serve(index, outside, combo.req_per_s)
        either = builder.resource("one of two", f"{service.model} {pool.id}", 1.0)
        builder.column(auxiliary, 0.0, 1.0, {whole: demand + lost}, {either: 1.0})
        builder.column(auxiliary, 0.0, 1.0, {outside: demand}, {either: 1.0})


def lost_with_one_node(combo: Combo, pool: Pool) -> float:
    """Most requests/s of combos like `combo` that one node of `pool` can carry.

    A combo is lost as a whole with any of its members.
    """
    smallest = min(member.gpus for member in combo.members if member.pool == pool.id)
    return (pool.per_node // smallest) * combo.req_per_s
