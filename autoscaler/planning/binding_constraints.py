"""Finds the constraints that limit a plan from the plan's counts, whichever strategy made the
plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.combo_usage import add_gpus, is_spot
from autoscaler.planning.model_constraints import off_spot_req_per_s, spot_limit_applies
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

POOLS = frozenset(
    {
        ReasonCode.POOL_FULL,
        ReasonCode.POOLS_FULL,
        ReasonCode.POOL_TOO_FEW_GPUS,
        ReasonCode.POOL_WITHOUT_NODES,
    }
)
"""Codes for a pool that limits a plan; the subject of the reason is the pool's id. The subject of
all other reasons is a model, or "*" for the budget."""


def binding_reasons(problem: PlanningProblem, plan: Plan) -> tuple[Reason, ...]:
    """The constraints that limit `plan`: full pools, reached ceilings and spot limits, the budget.

    The budget binds if a model is underserved or violates a constraint, and the nodes of one more
    combo would exceed the budget.
    """
    pools = {pool.id: pool for pool in problem.cluster.pools}
    used = used_gpus(problem, plan)
    most = {pool.id: most_nodes(problem, pool) for pool in pools.values()}
    found: dict[tuple[str, str], Reason] = {}

    def hold(reasons: Iterable[Reason]) -> None:
        for reason in reasons:  # one reason per kind and pool or model is enough: keep the first
            found.setdefault((binding_kind(reason.code), reason.subject), reason)

    for pool in pools.values():
        if most[pool.id] and used.get(pool.id, 0) >= most[pool.id] * pool.per_node:
            hold([Reason(ReasonCode.POOL_FULL, pool.id, quantities=(most[pool.id],))])
        elif pool.max_of_both and available_gpus(problem, pool, used) <= 0:
            hold([Reason(ReasonCode.POOLS_FULL, pool.id, quantities=(pool.max_of_both,))])
    for model in problem.planned_models():
        hold(_of_model(problem, plan, problem.cluster.service(model)))
        if model in plan.shortfall_req_per_s or any(b.subject == model for b in plan.violations):
            for combo in problem.candidates.get(model, ()):
                hold(_blockers(problem, plan, combo, pools, used))
    return tuple(found.values())


def binding_kind(code: ReasonCode) -> str:
    """The kind of a binding constraint in JSON output: "pool", "ceiling", "spot" or "budget"."""
    if code in POOLS:
        return "pool"
    return {ReasonCode.CEILING: "ceiling", ReasonCode.BUDGET: "budget"}.get(code, "spot")


def _of_model(problem: PlanningProblem, plan: Plan, service: Service) -> Iterator[Reason]:
    """The model's ceiling if the plan reaches it, and its spot limit if moving one more paid
    instance to spot would violate the limit."""
    counted = [target for target in plan.targets_of(service.model) if target.count]
    owned = {pool.id for pool in problem.cluster.pools if pool.market is Market.OWNED}
    if 0 < service.max_instances <= sum(target.count for target in counted):
        ceiling = (service.max_instances,)
        yield Reason(ReasonCode.CEILING, service.model, quantities=ceiling)
    firm = [target for target in counted if not is_spot(target.combo)]
    # An instance on owned nodes alone costs nothing, so spot would not replace it.
    paid = [t.combo.req_per_s for t in firm if not owned.issuperset(t.combo.gpus_by_pool())]
    provided = sum(target.count * target.combo.req_per_s for target in counted)
    needed = off_spot_req_per_s(problem, service, provided)
    if not paid or needed <= 0.0 or not spot_limit_applies(problem, service):
        return
    if sum(t.count * t.combo.req_per_s for t in firm) - min(paid) < needed * (1.0 - 1e-9):
        yield Reason(ReasonCode.SPOT_LIMIT, service.model, quantities=(service.spot_share,))


def _blockers(
    problem: PlanningProblem,
    plan: Plan,
    combo: Combo,
    pools: Mapping[str, Pool],
    used: Mapping[str, int],
) -> Iterator[Reason]:
    """The reasons why one more `combo` is impossible: its pools are full, or its nodes exceed the
    budget."""
    usd = 0.0
    planned = {node.pool: node for node in plan.nodes}
    for pool_id, gpus in combo.gpus_by_pool().items():
        pool = pools[pool_id]
        left = available_gpus(problem, pool, used)
        if left < gpus:
            nodes = most_nodes(problem, pool)
            few = Reason(ReasonCode.POOL_TOO_FEW_GPUS, pool_id, quantities=(max(0, left),))
            yield few if nodes else Reason(ReasonCode.POOL_WITHOUT_NODES, pool_id)
            return
        missing = gpus + used.get(pool_id, 0) - planned[pool_id].count * pool.per_node
        if missing > 0 and pool.market is not Market.OWNED:
            usd += -(-missing // pool.per_node) * pool.price_usd_per_h
    budget = problem.cluster.policy.budget_usd_per_h
    if budget > 0.0 and plan.cost_usd_per_h + usd > budget + 1e-9:
        yield Reason(ReasonCode.BUDGET, "*", quantities=(budget,))


def available_gpus(problem: PlanningProblem, pool: Pool, used: Mapping[str, int]) -> int:
    """GPUs of `pool` that are available in addition to `used`, including nodes that can be rented.

    If one ceiling covers two markets, the nodes of the other market count against it.
    """
    nodes = most_nodes(problem, pool)
    for other in problem.cluster.pools_by_shared_limit().get((pool.region, pool.name), ()):
        if other.id != pool.id:
            nodes = min(nodes, pool.max_of_both - -(-used.get(other.id, 0) // other.per_node))
    return nodes * pool.per_node - used.get(pool.id, 0)


def most_nodes(problem: PlanningProblem, pool: Pool) -> int:
    """Nodes of `pool` that a plan can use: those that exist and those that can be rented."""
    return problem.nodes_now(pool) + problem.rentable_nodes(pool)


def used_gpus(problem: PlanningProblem, plan: Plan) -> dict[str, int]:
    """GPUs per pool under `plan`."""
    return add_gpus(problem.taken_gpus, ((t.combo, t.count) for t in plan.targets))
