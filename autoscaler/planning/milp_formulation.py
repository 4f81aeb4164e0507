"""The planning problem as arrays: one function per family of columns and rows.

Coral's online problem (sec. 4.3) with transition costs, in the form that `optimizer` solves.

Columns of a combo, by the cost of its transition; p is the USD/h of the GPUs that it takes:
    keep    at most the running count               0
    switch  from a running combo on the same slices K_switch p
    load    on nodes that exist already             K_load p
    start   on nodes to be rented                   K_start p, see `Service.start_penalty`
    leave   soon after the start                    `Settling.leave_usd_per_h`
Each rented pool has two columns of whole nodes at their price: kept nodes and new nodes. So another
combo on a half-empty node adds no cost, and the plan releases empty nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.planning.candidate_combos import ranking_usd_per_h
from autoscaler.planning.combo_usage import is_spot, slices_of
from autoscaler.planning.floor_eligibility import counts_towards_floor
from autoscaler.planning.model_constraints import (
    ColumnKey,
    ColumnKind,
    PriorityClasses,
    Rows,
    add_ceiling,
    add_demand_rows,
    add_floor_and_spot_rows,
    add_retention_rows,
    add_settling_rows,
    add_useful_floor,
)
from autoscaler.planning.planning_problem import PlanningProblem, RolloutMode
from autoscaler.planning.problem_builder import ArrayBuilder
from autoscaler.planning.survival import add_survival_rows, max_loss_levels

# Small cost per owned GPU, below a cent in total: of two plans with equal bills, the plan with
# fewer owned GPUs wins.
_OWNED_USE = 1e-3


@dataclass(frozen=True, slots=True)
class Formulation:
    """The problem as arrays, with the meaning of the columns and rows.

    demand_names / resource_names: (row kind, model or pool) per row. demand_classes: number of
    priority classes of demand; they come before the classes of other constraints. fixed_usd_per_h:
    price of the nodes that models outside the scope need; every plan pays for them.
    survival_tightened: the survival rows require more capacity than the constraint, so the search
    may miss a cheaper plan (`planning.survival`).
    """

    problem: AllocationProblem
    keys: tuple[ColumnKey, ...]
    demand_names: tuple[tuple[str, str], ...]
    resource_names: tuple[tuple[str, str], ...]
    demand_classes: int
    fixed_usd_per_h: float
    survival_tightened: bool = False


def formulate(problem: PlanningProblem, exact: bool = False) -> Formulation:
    """The array form of `problem`. exact: include all survival rows, however many there are.

    If not all rows can be met, demand comes first, by the services' priorities. Then the other
    constraints follow in order: floors, spot limits, useful floors, survival. An infeasible
    constraint does not weaken the next one. Models without any combo get no rows: such rows cannot
    be served, and each class maximises the smallest fraction served.
    """
    builder: ArrayBuilder[ColumnKey] = ArrayBuilder()
    rows = Rows({}, {}, {}, {}, {}, {}, {}, {}, {}, {})
    services = [
        problem.cluster.service(model)
        for model in problem.planned_models()
        if problem.can_be_served(model)
    ]
    classes = PriorityClasses()
    if problem.rollout_mode is RolloutMode.STEP:
        add_retention_rows(builder, rows, problem, services, classes)
    add_demand_rows(builder, rows, problem, services, classes)
    demand_classes = classes.count
    for service in services:
        add_ceiling(builder, rows, problem, service)
        add_floor_and_spot_rows(builder, rows, problem, service, classes)
    for service in services:
        add_useful_floor(builder, rows, problem, service, classes)
    add_settling_rows(builder, rows, problem, classes.next())
    fixed_usd_per_h = _add_pools(builder, rows, problem)
    columns = _add_combos(builder, rows, problem, services)
    levels = len(builder.keys) if exact else max_loss_levels(problem, columns)
    strict = False
    for service in services:
        strict |= add_survival_rows(
            builder,
            ColumnKey(ColumnKind.AUXILIARY, service.model),
            problem,
            service,
            columns.get(service.model, []),
            classes.next() if service.survive != "none" else 0,
            levels,
        )
    return Formulation(
        builder.build(),
        tuple(builder.keys),
        tuple(builder.demand_names),
        tuple(builder.resource_names),
        demand_classes,
        fixed_usd_per_h,
        strict,
    )


def _add_pools(builder: ArrayBuilder[ColumnKey], rows: Rows, problem: PlanningProblem) -> float:
    """Add GPU rows and node columns of every pool; return the USD/h of nodes that every plan keeps.

    Slices and nodes have powers of two of GPUs and pack without gaps, so rows that count GPUs are
    exact. For each pool, one row limits all combos to the GPUs of all nodes. For rented pools, a
    second row limits the combos that do not wait for a new node to the GPUs of the existing nodes.
    In mode SURGE, a third row limits additions to the GPUs that are free now and to new nodes. The
    new nodes and all nodes paid for now, including empty ones, must then be within the budget and
    the ceiling together.
    """
    standing_gpus = problem.fixed_gpus()
    fixed_nodes = {
        p.id: problem.fixed_nodes(p, standing_gpus.get(p.id, 0)) for p in problem.cluster.pools
    }
    rented = [pool for pool in problem.cluster.pools if pool.market is not Market.OWNED]
    bill = sum(fixed_nodes[pool.id] * pool.price_usd_per_h for pool in rented)
    budget = problem.cluster.policy.budget_usd_per_h
    ceilings: dict[str, int] = {}
    for (region, name), members in problem.cluster.pools_by_shared_limit().items():
        left = members[0].max_of_both - sum(fixed_nodes[pool.id] for pool in members)
        both = builder.resource("nodes", f"{region}/{name}", max(0.0, float(left)))
        ceilings.update({pool.id: both for pool in members})
    row = builder.resource("budget", "*", max(0.0, budget - bill)) if budget > 0.0 else None
    surge_use = (
        _add_surge_rows(builder, rows, problem) if problem.rollout_mode is RolloutMode.SURGE else {}
    )
    for pool in problem.cluster.pools:
        there = problem.nodes_now(pool)
        nodes = there if pool.market is Market.OWNED else fixed_nodes[pool.id]
        # After node losses, fixed combos may need more GPUs than the pool has.
        capacity = max(0.0, float(nodes * pool.per_node - standing_gpus.get(pool.id, 0)))
        rows.gpus[pool.id] = builder.resource("GPUs", pool.id, capacity)
        if pool.market is Market.OWNED:
            continue
        rows.gpus_up[pool.id] = builder.resource("GPUs there", pool.id, capacity)
        kept = {rows.gpus_up[pool.id]: -float(pool.per_node), rows.gpus[pool.id]: -pool.per_node}
        new = {rows.gpus[pool.id]: -float(pool.per_node), **surge_use.get(pool.id, {})}
        for kind, use, most in (
            (ColumnKind.KEPT_NODES, kept, max(0, there - nodes)),
            (ColumnKind.NEW_NODES, new, problem.rentable_nodes(pool) - max(0, nodes - there)),
        ):
            spent = {} if row is None else {row: pool.price_usd_per_h}
            if pool.id in ceilings:
                spent[ceilings[pool.id]] = 1.0
            key = ColumnKey(kind, pool.id)
            if most > 0:
                builder.column(key, pool.price_usd_per_h, float(most), {}, {**use, **spent})
    return bill


def _add_surge_rows(
    builder: ArrayBuilder[ColumnKey], rows: Rows, problem: PlanningProblem
) -> dict[str, dict[int, float]]:
    """Add rows for the limits of mode SURGE: free GPUs, nodes and budget while all running
    instances stay. Return, by pool, how much of each row one new node uses.
    """
    budget = problem.cluster.policy.budget_usd_per_h
    taken = problem.gpus_now()
    found: dict[str, dict[int, float]] = {}
    for pool in problem.cluster.pools:
        free = problem.nodes_now(pool) * pool.per_node - taken.get(pool.id, 0)
        rows.surge[pool.id] = builder.resource("GPUs free now", pool.id, max(0.0, float(free)))
        found[pool.id] = {rows.surge[pool.id]: -float(pool.per_node)}
    for (region, name), members in problem.cluster.pools_by_shared_limit().items():
        left = members[0].max_of_both - sum(problem.nodes_now(pool) for pool in members)
        both = builder.resource("nodes now", f"{region}/{name}", max(0.0, float(left)))
        for pool in members:
            found[pool.id][both] = 1.0
    if budget > 0.0:
        left_usd = max(0.0, budget - problem.now_usd_per_h())
        row = builder.resource("budget now", "*", left_usd)
        for pool in problem.cluster.pools:
            found[pool.id][row] = pool.price_usd_per_h
    return found


def _add_combos(
    builder: ArrayBuilder[ColumnKey],
    rows: Rows,
    problem: PlanningProblem,
    services: list[Service],
) -> dict[str, list[tuple[int, Combo]]]:
    """Add the columns of every combo of the planned models; return the combos with their column
    indices, by model."""
    policy = problem.cluster.policy
    pools = {pool.id: pool for pool in problem.cluster.pools}
    standing = problem.fixed_gpus() if problem.additions_only else {}
    free_there = {
        pool.id: problem.nodes_now(pool) * pool.per_node - standing.get(pool.id, 0)
        for pool in pools.values()
    }
    there = {pool_id for pool_id, gpus in free_there.items() if gpus > 0}
    to_get = {pool.id for pool in pools.values() if problem.rentable_nodes(pool)}
    made: dict[str, list[tuple[int, Combo]]] = {}
    takes: dict[str, _Usage] = {}

    def taken_by(combo: Combo) -> _Usage:
        if combo.id not in takes:
            gpus = combo.gpus_by_pool()
            takes[combo.id] = _Usage(gpus, ranking_usd_per_h(combo, pools), _owned_use(gpus, pools))
        return takes[combo.id]

    def add(
        kind: ColumnKind, combo: Combo, k: float, most: float, ties: Sequence[int], source: str
    ) -> None:
        own = taken_by(combo)
        cost = k * own.usd_per_h + own.owned
        serve, use = _rows_of(kind, combo, own.gpus, rows)
        stays = source or (combo.id if kind is ColumnKind.KEEP else "")
        if stays in rows.settling:
            serve[rows.settling[stays]] = 1.0
        use |= dict.fromkeys(ties, 1.0)
        index = builder.column(ColumnKey(kind, combo.id, source), cost, most, serve, use)
        made.setdefault(combo.model, []).append((index, combo))

    for service in services:
        candidates = {c.id: c for c in problem.candidates.get(service.model, ())}
        running = () if problem.additions_only else problem.running_combos(service.model)
        by_slices: dict[object, list[Combo]] = {}
        limits = problem.switchable
        switches = running and policy.switches_roles and not service.scale_targets
        for combo in candidates.values() if switches else ():
            by_slices.setdefault(frozenset(slices_of(combo).items()), []).append(combo)
        for combo, count in running:
            same = by_slices.get(frozenset(slices_of(combo).items()), [])
            may = count if limits is None else min(count, limits.get(combo.id, 0))
            may = may if combo.can_switch_roles else 0
            twins = [c for c in same if c.id != combo.id and c.can_switch_roles] if may else []
            ties = [builder.resource("running", combo.id, float(count))] if twins else []
            if combo.id in rows.settling:
                leave = ColumnKey(ColumnKind.LEAVE, combo.id)
                usd_per_h = problem.settling[combo.id].leave_usd_per_h
                builder.column(leave, usd_per_h, float(count), {rows.settling[combo.id]: 1.0}, {})
            add(ColumnKind.KEEP, candidates.get(combo.id, combo), 0.0, float(count), ties, "")
            if len(twins) > 1 and may < count:  # all switch targets share the limit
                ties.append(builder.resource("switchable", combo.id, float(may)))
            for twin in twins:
                add(ColumnKind.SWITCH, twin, policy.k_switch, float(may), ties, combo.id)
        for combo in candidates.values():
            used = taken_by(combo).gpus.keys()
            if all(gpus <= free_there[p] for p, gpus in taken_by(combo).gpus.items()):
                add(ColumnKind.LOAD, combo, policy.k_load, float("inf"), (), "")
            if used & to_get and used <= there | to_get:
                k_start = service.start_penalty(policy, combo.start_s)
                add(ColumnKind.START, combo, k_start, float("inf"), (), "")
    return made


@dataclass(frozen=True, slots=True)
class _Usage:
    """The resource use of one combo. owned: nominal USD/h of its owned GPUs, which orders plans
    with equal bills."""

    gpus: Mapping[str, int]
    usd_per_h: float
    owned: float


def _rows_of(
    kind: ColumnKind, combo: Combo, gpus: Mapping[str, int], rows: Rows
) -> tuple[dict[int, float], dict[int, float]]:
    """The amounts that one combo serves and uses, by row. Only a column of kind START may use new
    nodes."""
    model = combo.model
    serve = {}
    if model in rows.demand:
        serve[rows.demand[model]] = combo.req_per_s
    if kind is ColumnKind.KEEP and model in rows.retained:
        serve[rows.retained[model]] = combo.req_per_s
    if model in rows.floor:
        serve[rows.floor[model]] = 1.0
    if model in rows.useful_floor:
        row, least = rows.useful_floor[model]
        serve[row] = float(counts_towards_floor(combo, least, runs=kind is ColumnKind.KEEP))
    if model in rows.off_spot and not is_spot(combo):
        worth = zip(rows.off_spot[model], (combo.req_per_s, 1.0), strict=True)
        serve.update({row: each for row, each in worth if row >= 0})
    use: dict[int, float] = {}
    if model in rows.ceiling:
        use[rows.ceiling[model]] = 1.0
    for pool, taken in gpus.items():
        use[rows.gpus[pool]] = float(taken)
        if kind is not ColumnKind.START and pool in rows.gpus_up:
            use[rows.gpus_up[pool]] = float(taken)
        if kind in (ColumnKind.LOAD, ColumnKind.START) and pool in rows.surge:
            use[rows.surge[pool]] = float(taken)
    return serve, use


def _owned_use(gpus: Mapping[str, int], pools: dict[str, Pool]) -> float:
    owned = {i: n for i, n in gpus.items() if pools[i].market is Market.OWNED}
    return _OWNED_USE * sum(n * pools[i].gpu.bf16_tflops * 1e-5 for i, n in owned.items())
