"""The planning problem as arrays: one function per family of columns and rows.

Owns Coral's online problem (sec. 4.3) with our transitions, in the form that
`optimizer` solves. Knows nothing of how that is solved or read back.

Columns of a combo c, at p USD/h for the GPUs that it takes:
    keep    at most as many as run                      0
    switch  from a running combo on the same slices     K_switch p
    load    on nodes that are there already             K_load p
    start   on nodes to be rented                       K_start p
and per rented pool two columns of whole nodes, kept and new, at their price. So a half-empty node
costs nothing more to fill, and an empty one is released.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.planning.arraybuilder import ArrayBuilder
from autoscaler.planning.combos import ranking_usd_per_h
from autoscaler.planning.modelrows import Classes, Key, Kind, Rows, add_model_rows, add_promises
from autoscaler.planning.problem import PlanningProblem
from autoscaler.planning.survival import add_survival_rows
from autoscaler.planning.usage import is_spot, slices_by_pool

# Among equal bills fewer owned GPUs win; small enough never to outweigh a cent.
_OWNED_USE = 1e-3


@dataclass(frozen=True, slots=True)
class Arrays:
    """The array form with the meaning of its columns and rows.

    demand_names / resource_names: (what, model or pool) per row. fixed_usd_per_h: nodes that
    models outside the scope need in any case; it is part of every plan's cost.
    """

    problem: AllocationProblem
    keys: tuple[Key, ...]
    demand_names: tuple[tuple[str, str], ...]
    resource_names: tuple[tuple[str, str], ...]
    fixed_usd_per_h: float


def to_arrays(problem: PlanningProblem, shares: Mapping[str, float] | None = None) -> Arrays:
    """The array form of `problem`.

    Where not everything can be had, demand comes first, by the services' priorities; then one
    promise after the other: floors, disruption budgets, survival. One that cannot be kept so
    takes nothing from the next. shares: fractions of demand that are known to be reachable
    together: they come first, and after them the rest of each model's demand, one by one.
    Models that nothing can serve have no rows: they must not drag the others' share to nothing.
    """
    builder: ArrayBuilder[Key] = ArrayBuilder()
    rows = Rows({}, {}, {}, {}, {}, {}, {})
    services = [
        problem.cluster.service(model)
        for model in problem.planned_models()
        if problem.can_be_served(model)
    ]
    classes = sorted({service.priority for service in services}, reverse=True)
    late = Classes(len(classes))
    for service in services:
        first = classes.index(service.priority)
        share = None if shares is None else shares.get(service.model, 0.0)
        add_model_rows(builder, rows, problem, service, first, late, share)
    for service in services:
        add_promises(builder, rows, problem, service, late)
    fixed_usd_per_h = _add_pools(builder, rows, problem)
    columns = _add_combos(builder, rows, problem, services)
    for service in services:
        add_survival_rows(
            builder,
            Key(Kind.AUXILIARY, service.model),
            problem,
            service,
            [(i, combo) for i, combo in columns if combo.model == service.model],
            late.next() if service.survive != "none" else 0,
        )
    return Arrays(
        builder.build(),
        tuple(builder.keys),
        tuple(builder.demand_names),
        tuple(builder.resource_names),
        fixed_usd_per_h,
    )


def _add_pools(builder: ArrayBuilder[Key], rows: Rows, problem: PlanningProblem) -> float:
    """GPU rows and node columns of every pool; the bill of nodes that are needed in any case.

    Slices are powers of two and so are nodes: they pack without a rest, so rows of GPUs are exact.
    One row has every combo on all nodes; a second one, for rented pools, keeps those that do not
    wait for a node to start within the nodes that are there.
    """
    fixed_gpus: dict[str, int] = {}
    for combo_id, count in problem.fixed().items():
        for pool_id, gpus in problem.running[combo_id].gpus_by_pool().items():
            fixed_gpus[pool_id] = fixed_gpus.get(pool_id, 0) + gpus * count
    fixed_nodes = {p.id: -(-fixed_gpus.get(p.id, 0) // p.per_node) for p in problem.cluster.pools}
    rented = [pool for pool in problem.cluster.pools if pool.market is not Market.OWNED]
    bill = sum(fixed_nodes[pool.id] * pool.price_usd_per_h for pool in rented)
    budget = problem.cluster.policy.budget_usd_per_h
    row = builder.resource("budget", "*", max(0.0, budget - bill)) if budget > 0.0 else None
    for pool in problem.cluster.pools:
        there = problem.nodes_now(pool)
        used = fixed_gpus.get(pool.id, 0)
        nodes = there if pool.market is Market.OWNED else fixed_nodes[pool.id]
        capacity = float(nodes * pool.per_node - used)
        rows.gpus[pool.id] = builder.resource("GPUs", pool.id, capacity)
        if pool.market is Market.OWNED:
            continue
        rows.there[pool.id] = builder.resource("GPUs there", pool.id, capacity)
        kept = {rows.there[pool.id]: -float(pool.per_node), rows.gpus[pool.id]: -pool.per_node}
        new = {rows.gpus[pool.id]: -float(pool.per_node)}
        for kind, use, most in (
            (Kind.KEPT_NODES, kept, there - nodes),
            (Kind.NEW_NODES, new, problem.nodes_to_get(pool)),
        ):
            spent = {} if row is None else {row: pool.price_usd_per_h}
            key = Key(kind, pool.id)
            builder.column(key, pool.price_usd_per_h, float(most), {}, {**use, **spent})
    return bill


def _add_combos(
    builder: ArrayBuilder[Key],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
) -> list[tuple[int, Combo]]:
    """Columns of every combo of the models that may change, with their indices."""
    policy = problem.cluster.policy
    pools = {pool.id: pool for pool in problem.cluster.pools}
    made: list[tuple[int, Combo]] = []

    def add(kind: Kind, combo: Combo, k: float, most: float, tie: int | None, source: str) -> None:
        cost = k * ranking_usd_per_h(combo, pools.values()) + _owned_use(combo, pools)
        serve, use = _rows_of(kind, combo, rows)
        if tie is not None:
            use[tie] = 1.0
        made.append((builder.column(Key(kind, combo.id, source), cost, most, serve, use), combo))

    for service in services:
        candidates = {c.id: c for c in problem.candidates.get(service.model, ())}
        running = {
            i: n
            for i, n in problem.fleet.items()
            if n and problem.running[i].model == service.model
        }
        by_slices: dict[object, list[Combo]] = {}
        for combo in candidates.values():
            by_slices.setdefault(_slices(combo), []).append(combo)
        for combo_id, count in running.items():
            combo = problem.running[combo_id]
            twins = [c for c in by_slices.get(_slices(combo), []) if c.id != combo_id]
            tie = builder.resource("running", combo_id, float(count)) if twins else None
            add(Kind.KEEP, candidates.get(combo_id, combo), 0.0, float(count), tie, "")
            if not service.scale_targets:
                for twin in twins:
                    add(Kind.SWITCH, twin, policy.k_switch, float(count), tie, combo_id)
        for combo in candidates.values():
            used = [pools[pool] for pool in combo.gpus_by_pool()]
            if all(problem.nodes_now(pool) for pool in used):
                add(Kind.LOAD, combo, policy.k_load, float("inf"), None, "")
            if any(problem.nodes_to_get(pool) for pool in used):
                add(Kind.START, combo, policy.k_start, float("inf"), None, "")
    return made


def _rows_of(kind: Kind, combo: Combo, rows: Rows) -> tuple[dict[int, float], dict[int, float]]:
    """What one combo serves and uses, by row. Only a start may use nodes that are not there yet."""
    model = combo.model
    serve = {}
    for row in rows.demand.get(model, ()):
        serve[row] = combo.req_per_s
    if model in rows.floor:
        serve[rows.floor[model]] = 1.0
    if model in rows.undisturbed and kind in (Kind.KEEP, Kind.SWITCH):
        serve[rows.undisturbed[model]] = combo.req_per_s
    use: dict[int, float] = {}
    if model in rows.ceiling:
        use[rows.ceiling[model]] = 1.0
    if is_spot(combo):
        use[rows.spot[model]] = combo.req_per_s
    for pool, gpus in combo.gpus_by_pool().items():
        use[rows.gpus[pool]] = float(gpus)
        if kind is not Kind.START and pool in rows.there:
            use[rows.there[pool]] = float(gpus)
    return serve, use


def _slices(combo: Combo) -> tuple[tuple[str, tuple[int, int, int, int]], ...]:
    return tuple(sorted(slices_by_pool(combo).items()))


def _owned_use(combo: Combo, pools: dict[str, Pool]) -> float:
    owned = {i: g for i, g in combo.gpus_by_pool().items() if pools[i].market is Market.OWNED}
    return _OWNED_USE * sum(gpus * pools[i].gpu.bf16_tflops * 1e-5 for i, gpus in owned.items())
