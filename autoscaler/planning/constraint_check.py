"""Checks which constraints of services, other than their demand, a plan violates.

The check reads only the plan's counts, so it treats all strategies alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autoscaler.domain.cluster import Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.combo_usage import is_spot, req_per_s_of
from autoscaler.planning.floor_eligibility import count_useful
from autoscaler.planning.model_constraints import off_spot_req_per_s, spot_limit_applies
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.survival import lost_with_one_node
from topics.reason_codes import ReasonCode

_TOLERANCE = 1e-6
Counted = list[tuple[Combo, int]]


def violated_constraints(problem: PlanningProblem, plan: Plan) -> tuple[Reason, ...]:
    """Floors, spot limits, survival constraints and the budget that `plan` violates.

    A model with unserved demand is not checked for survival and spot limits, because its demand
    comes first.
    """
    found: list[Reason] = []
    for model in problem.planned_models():
        counted = [
            (target.combo, target.count) for target in plan.targets_of(model) if target.count
        ]
        is_short = model in plan.shortfall_req_per_s
        found += violated_constraints_of(problem, problem.cluster.service(model), counted, is_short)
    budget = problem.cluster.policy.budget_usd_per_h
    if 0.0 < budget < plan.cost_usd_per_h - _TOLERANCE:
        promise = Reason(ReasonCode.PROMISED_BUDGET, "*", quantities=(budget,))
        costs = Reason(ReasonCode.NODES_COST, "*", quantities=(plan.cost_usd_per_h,))
        found.append(_broken(promise, costs))
    return tuple(found)


def violated_constraints_of(
    problem: PlanningProblem, service: Service, counted: Counted, is_short: bool
) -> Iterator[Reason]:
    """The constraints of `service` that the combos `counted` violate. is_short: whether they leave
    demand unserved, so that only the floor is checked."""
    model, have = service.model, sum(count for _, count in counted)
    if have < service.min_instances and problem.can_be_served(model):
        yield _broken(floor_constraint(service), _planned(have))
    elif (do := count_useful(problem, model, counted)) < service.min_instances and counted:
        yield _broken(useful_floor_constraint(service), _planned(do))
    if not is_short and counted:
        yield from _off_spot(problem, service, counted)
        yield from broken_survival(problem, service, counted)


def floor_constraint(service: Service) -> Reason:
    """The floor of `service`."""
    floor = (service.min_instances,)
    return Reason(ReasonCode.PROMISED_FLOOR, service.model, quantities=floor)


def useful_floor_constraint(service: Service) -> Reason:
    """The floor of `service`, counting only useful instances (`planning.floor_eligibility`)."""
    floor = (service.min_instances,)
    return Reason(ReasonCode.PROMISED_USEFUL_FLOOR, service.model, quantities=floor)


def spot_constraint(service: Service) -> Reason:
    """The largest share of `service` that may use spot nodes."""
    return Reason(ReasonCode.PROMISED_SPOT, service.model, quantities=(service.spot_share,))


def survival_constraint(service: Service) -> Reason:
    """The loss of nodes that `service` must survive."""
    return Reason(ReasonCode.PROMISED_SURVIVAL, service.model, (service.survive,))


def _broken(promise: Reason, instead: Reason) -> Reason:
    return replace(promise, because=(instead,))


def _planned(count: int) -> Reason:
    return Reason(ReasonCode.INSTANCES_PLANNED, quantities=(count,))


def _off_spot(problem: PlanningProblem, service: Service, counted: Counted) -> Iterator[Reason]:
    needed = off_spot_req_per_s(problem, service, req_per_s_of(counted))
    firm = req_per_s_of((c, n) for c, n in counted if not is_spot(c))
    if spot_limit_applies(problem, service) and firm < needed * (1.0 - _TOLERANCE):
        yield _broken(
            spot_constraint(service), Reason(ReasonCode.OFF_SPOT, quantities=(firm, needed))
        )


def broken_survival(
    problem: PlanningProblem, service: Service, counted: Counted
) -> Iterator[Reason]:
    """The loss that `service` must survive, if the counted combos do not survive it."""
    demand = problem.demands[service.model].req_per_s
    if service.survive == "none" or demand <= 0.0:
        return
    if service.survive == "all-spot":
        left, lost = req_per_s_of((c, n) for c, n in counted if not is_spot(c)), ""
    else:
        pools = [problem.cluster.pool(i) for i in {p for c, _ in counted for p in c.gpus_by_pool()}]
        left, lost = min((_left_without(pool, counted), pool.id) for pool in pools)
    if left < demand * (1.0 - _TOLERANCE):
        names = (lost,) if lost else ()
        leaves = Reason(ReasonCode.LOSS_LEAVES, "", names, (left / demand,))
        yield _broken(survival_constraint(service), leaves)


def _left_without(pool: Pool, counted: Counted) -> float:
    """Requests/s of the counted combos that remain if the node of `pool` with the largest rate is
    lost."""
    on_it = [(combo, count) for combo, count in counted if pool.id in combo.gpus_by_pool()]
    worst = max((lost_with_one_node(combo, pool) for combo, _ in on_it), default=0.0)
    return req_per_s_of(counted) - min(worst, req_per_s_of(on_it))
