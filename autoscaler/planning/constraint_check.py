"""Promises of services beside their demand, and which of them a plan does not keep.

Owns the check, made on a plan's counts, so that it means the same whichever strategy made it.
Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.planning.combo_usage import is_spot, req_per_s_of
from autoscaler.planning.floor_eligibility import useful, useful_floor
from autoscaler.planning.model_constraints import limits_spot, off_spot_req_per_s
from autoscaler.planning.plan import Broken, Plan
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.survival import lost_with_one_node

_TOLERANCE = 1e-6
Counted = list[tuple[Combo, int]]


def broken_promises(problem: PlanningProblem, plan: Plan) -> tuple[Broken, ...]:
    """Floors, limits of spot, survival and the budget that `plan` does not keep.

    What a model that goes short anyway could not survive is left out: its demand comes first.
    """
    found: list[Broken] = []
    for model in problem.planned_models():
        service = problem.cluster.service(model)
        counted = [(target.combo, target.count) for target in plan.of(model) if target.count]
        have = sum(count for _, count in counted)
        if have < service.min_instances and problem.can_be_served(model):
            what = f"floor of {service.min_instances} instances"
            found.append(Broken(model, what, f"{have} planned"))
        elif (do := useful(problem, model, counted)) < service.min_instances and counted:
            found.append(Broken(model, useful_floor(service.min_instances), f"{do} planned"))
        if model not in plan.shortfall_req_per_s and counted:
            found += _off_spot(problem, service, counted)
            found += _survival(problem, service, counted)
    budget = problem.cluster.policy.budget_usd_per_h
    if 0.0 < budget < plan.cost_usd_per_h - _TOLERANCE:
        what = f"budget of {budget:.2f} USD/h"
        found.append(Broken("*", what, f"whole nodes cost {plan.cost_usd_per_h:.2f}"))
    return tuple(found)


def _off_spot(problem: PlanningProblem, service: Service, counted: Counted) -> Iterator[Broken]:
    needed = off_spot_req_per_s(problem, service, req_per_s_of(counted))
    firm = req_per_s_of((c, n) for c, n in counted if not is_spot(c))
    if limits_spot(problem, service) and firm < needed * (1.0 - _TOLERANCE):
        what = f"spot <= {service.spot_share:.0%}"
        yield Broken(service.model, what, f"only {firm:.3g} of {needed:.3g} req/s off spot")


def _survival(problem: PlanningProblem, service: Service, counted: Counted) -> Iterator[Broken]:
    demand = problem.demands[service.model].req_per_s
    if service.survive == "none" or demand <= 0.0:
        return
    if service.survive == "all-spot":
        left, lost = req_per_s_of((c, n) for c, n in counted if not is_spot(c)), "all spot"
    else:
        pools = [problem.cluster.pool(i) for i in {p for c, _ in counted for p in c.gpus_by_pool()}]
        left, lost = min(
            (_left_without(pool, counted), f"a node of {_name(pool)}") for pool in pools
        )
    if left < demand * (1.0 - _TOLERANCE):
        detail = f"losing {lost} leaves {left / demand:.0%} of demand"
        yield Broken(service.model, f"survive {service.survive}", detail)


def _left_without(pool: Pool, counted: Counted) -> float:
    """Requests/s without the node of `pool` that carries most."""
    on_it = [(combo, count) for combo, count in counted if pool.id in combo.gpus_by_pool()]
    worst = max((lost_with_one_node(combo, pool) for combo, _ in on_it), default=0.0)
    return req_per_s_of(counted) - min(worst, req_per_s_of(on_it))


def _name(pool: Pool) -> str:
    return f"{pool.region}/{pool.name} ({pool.market})"
