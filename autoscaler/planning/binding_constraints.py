"""Which constraints hold a plan where it is, in words.

Owns finding them in a plan's counts, so that they read the same whichever strategy made it.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autoscaler.domain.cluster import Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.planning.combo_usage import add_gpus, is_spot
from autoscaler.planning.model_constraints import limits_spot, off_spot_req_per_s
from autoscaler.planning.plan import Binding, Plan
from autoscaler.planning.planning_problem import PlanningProblem

Named = tuple[str, str]
"""(kind, subject): ("pool", its id), ("ceiling" or "spot", the model) or ("budget", "*")."""


def bindings(problem: PlanningProblem, plan: Plan) -> tuple[Binding, ...]:
    """What holds `plan`: full pools, ceilings and limits of spot that are reached, the budget.

    The budget holds where a model goes short, or breaks a promise, and one more combo of some kind
    would cost more than is left of it.
    """
    pools = {pool.id: pool for pool in problem.cluster.pools}
    used = used_gpus(problem, plan)
    most = {i: problem.nodes_now(pool) + problem.nodes_to_get(pool) for i, pool in pools.items()}
    found: dict[Named, str] = {}
    for pool in pools.values():
        where = f"{pool.region}/{pool.name}"
        if most[pool.id] and used.get(pool.id, 0) >= most[pool.id] * pool.per_node:
            nodes = "the only node" if most[pool.id] == 1 else f"all {most[pool.id]} nodes"
            found["pool", pool.id] = f"{nodes} of {where} ({pool.market}) in use"
        elif pool.max_of_both and gpus_left(problem, pool, used) <= 0:
            text = f"all {pool.max_of_both} nodes of {where} in use, on-demand and spot together"
            found["pool", pool.id] = text
    for model in problem.planned_models():
        found.update(_of_model(problem, plan, problem.cluster.service(model)))
        if model in plan.shortfall_req_per_s or any(b.subject == model for b in plan.broken):
            for combo in problem.candidates.get(model, ()):
                for named, text in _blockers(problem, plan, combo, pools, used):
                    found.setdefault(named, text)
    return tuple(Binding(what, subject, text) for (what, subject), text in found.items())


def _of_model(
    problem: PlanningProblem, plan: Plan, service: Service
) -> Iterator[tuple[Named, str]]:
    """The ceiling, where it is reached, and the limit of spot, where nothing off spot that is paid
    for may go."""
    counted = [target for target in plan.of(service.model) if target.count]
    owned = {pool.id for pool in problem.cluster.pools if pool.market is Market.OWNED}
    if 0 < service.max_instances <= sum(target.count for target in counted):
        text = f"at most {service.max_instances} instances"
        yield ("ceiling", service.model), text
    firm = [target for target in counted if not is_spot(target.combo)]
    # What stands on owned nodes alone costs nothing: spot would not take its place.
    paid = [t.combo.req_per_s for t in firm if not owned.issuperset(t.combo.gpus_by_pool())]
    provided = sum(target.count * target.combo.req_per_s for target in counted)
    needed = off_spot_req_per_s(problem, service, provided)
    if not paid or needed <= 0.0 or not limits_spot(problem, service):
        return
    if sum(t.count * t.combo.req_per_s for t in firm) - min(paid) < needed * (1.0 - 1e-9):
        yield ("spot", service.model), f"spot <= {service.spot_share:.0%}"


def _blockers(
    problem: PlanningProblem,
    plan: Plan,
    combo: Combo,
    pools: Mapping[str, Pool],
    used: Mapping[str, int],
) -> Iterator[tuple[Named, str]]:
    """What speaks against one more `combo`: its pools, or the price of the nodes it needs."""
    usd = 0.0
    planned = {node.pool: node for node in plan.nodes}
    for pool_id, gpus in combo.gpus_by_pool().items():
        pool = pools[pool_id]
        left = gpus_left(problem, pool, used)
        if left < gpus:
            nodes = problem.nodes_now(pool) + problem.nodes_to_get(pool)
            words = f"{max(0, left)} GPUs left" if nodes else "no nodes available"
            yield ("pool", pool_id), f"{pool.region}/{pool.name} ({pool.market}): {words}"
            return
        missing = gpus + used.get(pool_id, 0) - planned[pool_id].count * pool.per_node
        if missing > 0 and pool.market is not Market.OWNED:
            usd += -(-missing // pool.per_node) * pool.price_usd_per_h
    budget = problem.cluster.policy.budget_usd_per_h
    if budget > 0.0 and plan.cost_usd_per_h + usd > budget + 1e-9:
        yield ("budget", "*"), f"budget {budget:.2f} USD/h"


def gpus_left(problem: PlanningProblem, pool: Pool, used: Mapping[str, int]) -> int:
    """GPUs of `pool` that can still be had beside `used`, nodes to rent included.

    Where one ceiling holds for two markets, the nodes of the other one are taken off.
    """
    nodes = problem.nodes_now(pool) + problem.nodes_to_get(pool)
    for other in problem.cluster.together().get((pool.region, pool.name), ()):
        if other.id != pool.id:
            nodes = min(nodes, pool.max_of_both - -(-used.get(other.id, 0) // other.per_node))
    return nodes * pool.per_node - used.get(pool.id, 0)


def used_gpus(problem: PlanningProblem, plan: Plan) -> dict[str, int]:
    """GPUs per pool under `plan`."""
    return add_gpus(problem.taken_gpus, ((t.combo, t.count) for t in plan.targets))
