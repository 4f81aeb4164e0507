"""From counts to a checked plan: capacity, nodes, bill, shortfall, all in floating point.

Owns the arithmetic and the checks that every strategy's answer passes before it is returned.
Knows no solver.
"""

from __future__ import annotations

from collections.abc import Mapping

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Market
from autoscaler.domain.combo import Combo
from autoscaler.planning.plan import NodeTarget, Plan, PlanStatus, Target
from autoscaler.planning.problem import PlanningProblem, fewest_nodes
from autoscaler.planning.usage import is_spot

_TOLERANCE = 1e-6


def read_back(
    problem: PlanningProblem,
    strategy: str,
    counts: Mapping[str, int],
    status: PlanStatus,
    penalties_usd_per_h: float = 0.0,
    lower_bound_usd_per_h: float | None = None,
    **more: object,
) -> Plan:
    """The plan of `counts` (combo id -> count of the models that may change), checked.

    Combos of other models are added as they run. lower_bound_usd_per_h: on cost + penalties.
    InvalidValue when more nodes are needed than there are, or the bound exceeds the objective.
    """
    combos = all_combos(problem)
    wanted = {combo_id: count for combo_id, count in counts.items() if count}
    wanted.update(problem.fixed())
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
            Target(combos[i], wanted.get(i, 0), problem.fleet.get(i, 0))
            for i in sorted(named, key=lambda i: (order[combos[i].model], i))
        ),
        nodes=nodes,
        cost_usd_per_h=cost,
        now_usd_per_h=sum(
            problem.nodes_now(pool) * pool.price_usd_per_h
            for pool in problem.cluster.pools
            if pool.market is not Market.OWNED
        ),
        objective_usd_per_h=objective,
        lower_bound_usd_per_h=max(0.0, bound),
        gap=gap,
        capacity_req_per_s=capacity,
        shortfall_req_per_s=shortfalls(problem, capacity),
        **more,  # type: ignore[arg-type]
    )


def failed(problem: PlanningProblem, strategy: str, reason: str, limits: tuple[str, ...]) -> Plan:
    """A plan that changes nothing, because none came out; `reason` says why."""
    standing = {i: n for i, n in problem.fleet.items() if n}
    made = read_back(problem, strategy, standing, PlanStatus.FAILED)
    return Plan(
        strategy=made.strategy,
        status=PlanStatus.FAILED,
        targets=made.targets,
        nodes=made.nodes,
        cost_usd_per_h=made.cost_usd_per_h,
        now_usd_per_h=made.now_usd_per_h,
        objective_usd_per_h=made.objective_usd_per_h,
        lower_bound_usd_per_h=0.0,
        gap=-1.0,
        capacity_req_per_s=made.capacity_req_per_s,
        shortfall_req_per_s=made.shortfall_req_per_s,
        limits_hit=limits,
        notes=(reason,),
    )


def all_combos(problem: PlanningProblem) -> dict[str, Combo]:
    """Every combo of the problem by its id: candidates and what runs."""
    found = {combo.id: combo for combos in problem.candidates.values() for combo in combos}
    return {**problem.running, **found}


def shortfalls(problem: PlanningProblem, capacity: Mapping[str, float]) -> dict[str, float]:
    """Demand above utilization x capacity, in requests/s, per planned model that has any."""
    short = {}
    for model in problem.planned_models():
        missing = problem.needed_req_per_s(model) - capacity[model]
        if missing > _TOLERANCE * problem.needed_req_per_s(model):
            short[model] = missing * problem.cluster.service(model).utilization
    return short


def spot_req_per_s(problem: PlanningProblem, counts: Mapping[str, int], model: str) -> float:
    """Raw capacity of `model` that rests on spot nodes under `counts`."""
    combos = all_combos(problem)
    return sum(
        n * combos[i].req_per_s
        for i, n in counts.items()
        if combos[i].model == model and is_spot(combos[i])
    )


def _nodes(problem: PlanningProblem, wanted: list[tuple[Combo, int]]) -> tuple[NodeTarget, ...]:
    """Nodes needed per pool; InvalidValue when a pool cannot have so many.

    Rented nodes that nothing uses are released; owned ones stay and cost nothing.
    """
    needed = fewest_nodes(problem.cluster, wanted)
    nodes = []
    for pool in problem.cluster.pools:
        count = needed.get(pool.id, 0)
        now = problem.nodes_now(pool)
        most = now + problem.nodes_to_get(pool)
        if count > most:
            raise InvalidValue(f"nodes of {pool.id} under the plan", count, f"at most {most}")
        price = 0.0 if pool.market is Market.OWNED else pool.price_usd_per_h
        nodes.append(NodeTarget(pool.id, count, now, count * price))
    return tuple(nodes)
