"""Turns a solver's counts into a plan: capacity, nodes, cost and shortfall. The plans of all
strategies are built and checked here, in floating point.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.domain.validation import InvalidValue
from autoscaler.planning.combo_usage import add_gpus
from autoscaler.planning.plan import Plan, PlannedCount, PlannedNodes, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem

_TOLERANCE = 1e-6


def decode_plan(
    problem: PlanningProblem,
    strategy: str,
    counts: Mapping[str, int],
    status: PlanStatus,
    penalties_usd_per_h: float = 0.0,
    lower_bound_usd_per_h: float | None = None,
    **more: object,
) -> Plan:
    """The plan of `counts` (combo id -> count, in addition to fixed combos), checked.

    Fixed combos keep their counts. lower_bound_usd_per_h: lower bound of cost + penalties. Raises
    InvalidValue if the plan needs more nodes than there are, or if the bound exceeds the objective.
    """
    combos = all_combos(problem)
    wanted = problem.fixed_fleet()
    for combo_id, count in counts.items():
        if count:
            wanted[combo_id] = wanted.get(combo_id, 0) + count
    nodes = _nodes(problem, [(combos[i], n) for i, n in wanted.items()])
    cost = sum(node.usd_per_h for node in nodes)
    objective = cost + penalties_usd_per_h
    capacity = dict.fromkeys(problem.demands, 0.0)
    for combo_id, count in wanted.items():
        if combos[combo_id].model in capacity:
            capacity[combos[combo_id].model] += count * combos[combo_id].req_per_s
    bound = -1.0 if lower_bound_usd_per_h is None else lower_bound_usd_per_h
    if bound > objective + _TOLERANCE * max(1.0, objective):
        raise InvalidValue("lower bound", bound, f"at most the objective, {objective:.6f} USD/h")
    gap = -1.0
    if lower_bound_usd_per_h is not None:
        gap = 0.0 if objective <= 0.0 else max(0.0, 1.0 - bound / objective)
    named = sorted(set(wanted) | {i for i, n in problem.fleet.items() if n})
    order = {service.model: place for place, service in enumerate(problem.cluster.services)}
    return Plan(
        strategy=strategy,
        status=status,
        targets=tuple(
            PlannedCount(combos[i], wanted.get(i, 0), problem.fleet.get(i, 0))
            for i in sorted(named, key=lambda i: (order[combos[i].model], i))
        ),
        nodes=nodes,
        cost_usd_per_h=cost,
        now_usd_per_h=problem.now_usd_per_h(),
        objective_usd_per_h=objective,
        lower_bound_usd_per_h=max(0.0, bound),
        gap=gap,
        capacity_req_per_s=capacity,
        shortfall_req_per_s=shortfalls(problem, capacity),
        **more,  # type: ignore[arg-type]
    )


def failed_plan(
    problem: PlanningProblem, strategy: str, reason: Reason, limits: tuple[str, ...]
) -> Plan:
    """A plan with status FAILED that keeps the running fleet, because the search found no plan.
    reason: the cause."""
    everything_stays = replace(problem, additions_only=True)
    made = decode_plan(everything_stays, strategy, {}, PlanStatus.FAILED)
    return replace(made, limits_hit=limits, notes=(reason,))


def all_combos(problem: PlanningProblem) -> dict[str, Combo]:
    """Every combo of the problem by its id: the candidates and the running combos."""
    found = {combo.id: combo for combos in problem.candidates.values() for combo in combos}
    return {**problem.running, **found}


def shortfalls(problem: PlanningProblem, capacity: Mapping[str, float]) -> dict[str, float]:
    """Requests/s of demand that exceed utilization x capacity, for each planned model with a
    shortfall."""
    short = {}
    for model in problem.planned_models():
        missing = problem.needed_req_per_s(model) - capacity[model]
        if missing > _TOLERANCE * problem.needed_req_per_s(model):
            short[model] = missing * problem.cluster.service(model).utilization
    return short


def _nodes(problem: PlanningProblem, wanted: list[tuple[Combo, int]]) -> tuple[PlannedNodes, ...]:
    """Nodes needed per pool. Raises InvalidValue if the plan needs more nodes than a pool can have.
    The plan releases unused rented nodes, unless only additions are allowed. Owned nodes stay and
    are free. After node losses, fixed combos may need more nodes than exist; this is not an error
    of the plan.
    """
    gpus = add_gpus(problem.taken_gpus, wanted)
    standing = problem.fixed_gpus()
    nodes = []
    for pool in problem.cluster.pools:
        now = problem.nodes_now(pool)
        stays = problem.fixed_nodes(pool, standing.get(pool.id, 0))
        count = -(-gpus.get(pool.id, 0) // pool.per_node)
        most = max(now + problem.rentable_nodes(pool), stays)
        if count > most:
            raise InvalidValue(f"nodes of {pool.id} under the plan", count, f"at most {most}")
        price = 0.0
        if pool.market is not Market.OWNED:
            price, count = pool.price_usd_per_h, max(count, stays)
        nodes.append(PlannedNodes(pool.id, count, now, count * price))
    counts = {node.pool: node.count for node in nodes}
    for (region, name), pools in problem.cluster.pools_by_shared_limit().items():
        together = sum(counts[pool.id] for pool in pools)
        stay = sum(problem.fixed_nodes(pool, standing.get(pool.id, 0)) for pool in pools)
        most = max(pools[0].max_of_both, stay)
        if together > most:
            where = f"nodes of {region}/{name} under the plan"
            raise InvalidValue(where, together, f"at most {most}")
    return tuple(nodes)
