"""The cause of each change of a plan: the demand, constraint or price without which a model's
running combos would stay.

For each model, a counterfactual fleet is checked: its running combos with the planned combos of
all other models. The first condition that this fleet fails, in the order of their priority, is the
cause; if it fails none, the cause is its cost. The check reads only counts and repeats no search.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoscaler.domain.cluster import Market, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.binding_constraints import available_gpus, most_nodes
from autoscaler.planning.combo_usage import add_gpus, req_per_s_of
from autoscaler.planning.constraint_check import Counted, violated_constraints_of
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

_TOLERANCE = 1e-6
_CENT = 0.005
"""Half a cent per hour in USD/h: smaller savings are no cause."""


def change_causes(problem: PlanningProblem, plan: Plan) -> tuple[Reason, ...]:
    """One cause for each planned model whose counts change; its subject is the model."""
    return tuple(
        _cause(problem, plan, model)
        for model in problem.planned_models()
        if any(target.count != target.now for target in plan.targets_of(model))
    )


def _cause(problem: PlanningProblem, plan: Plan, model: str) -> Reason:
    service = problem.cluster.service(model)
    running = problem.running
    stays = [(running[t.combo.id], t.now) for t in plan.targets_of(model) if t.now]
    if problem.types:
        return Reason(ReasonCode.MORE_WORK, model)
    failed = next(_failed(problem, plan, service, stays), None)
    return failed or _cost_cause(problem, plan, service, stays)


def _failed(
    problem: PlanningProblem, plan: Plan, service: Service, stays: Counted
) -> Iterator[Reason]:
    """The conditions that fail if the combos `stays` of `service` stay."""
    model, count = service.model, sum(number for _, number in stays)
    needed, serves = problem.needed_req_per_s(model), req_per_s_of(stays)
    short = serves < needed * (1.0 - _TOLERANCE)
    if short and any(not combo.meets_slo for combo, _ in stays):
        yield Reason(ReasonCode.SLO_PREDICTED, model)
    elif short:
        figures = needed * service.utilization, service.utilization, serves, float(count)
        yield Reason(ReasonCode.SURGE, model, quantities=figures)
    for broken in violated_constraints_of(problem, service, stays, short):
        limit = Reason(broken.code, model, broken.names, broken.quantities)
        is_floor = broken.code is ReasonCode.PROMISED_FLOOR
        yield (
            Reason(ReasonCode.FLOOR, model, quantities=broken.quantities)
            if is_floor
            else Reason(ReasonCode.REQUIRED, model, because=(limit,))
        )
    if 0 < service.max_instances < count:
        limit = Reason(ReasonCode.CEILING, model, quantities=(service.max_instances,))
        yield Reason(ReasonCode.REQUIRED, model, because=(limit,))
    yield from _without_room(problem, plan, model, stays)


def _without_room(
    problem: PlanningProblem, plan: Plan, model: str, stays: Counted
) -> Iterator[Reason]:
    """The pools and the budget that do not suffice for the fleet with `stays`, with the models for
    which others make room."""
    gpus = add_gpus(problem.taken_gpus, [*_others(plan, model), *stays])
    gain = [t for t in plan.targets if t.combo.model != model and t.count > t.now]
    for pool in problem.cluster.pools:
        if available_gpus(problem, pool, gpus) >= 0:
            continue
        names = sorted({t.combo.model for t in gain if pool.id in t.combo.gpus_by_pool()})
        if names:
            yield Reason(ReasonCode.MAKES_ROOM, model, (pool.id, *names))
        else:
            most = most_nodes(problem, pool)
            limit = Reason(ReasonCode.POOL_LIMIT, pool.id, quantities=(most,))
            yield Reason(ReasonCode.REQUIRED, model, because=(limit,))
    budget = problem.cluster.policy.budget_usd_per_h
    if 0.0 < budget < _usd_per_h(problem, gpus) - _TOLERANCE:
        limit = Reason(ReasonCode.BUDGET, model, quantities=(budget,))
        yield Reason(ReasonCode.REQUIRED, model, because=(limit,))


def _cost_cause(problem: PlanningProblem, plan: Plan, service: Service, stays: Counted) -> Reason:
    """A surplus or a saving; if the change saves nothing, the tolerance of the search."""
    model = service.model
    gpus = add_gpus(problem.taken_gpus, [*_others(plan, model), *stays])
    saves = _usd_per_h(problem, gpus) - plan.cost_usd_per_h
    if all(target.count <= target.now for target in plan.targets_of(model)):
        return Reason(ReasonCode.EXCESS, model)
    if saves > _CENT:
        return Reason(ReasonCode.CHEAPER, model, quantities=(saves,))
    return Reason(ReasonCode.EQUAL_COST, model)


def _others(plan: Plan, model: str) -> list[tuple[Combo, int]]:
    return [(t.combo, t.count) for t in plan.targets if t.combo.model != model]


def _usd_per_h(problem: PlanningProblem, gpus: dict[str, int]) -> float:
    """Price of the rented nodes that hold `gpus`."""
    return sum(
        -(-gpus.get(pool.id, 0) // pool.per_node) * pool.price_usd_per_h
        for pool in problem.cluster.pools
        if pool.market is not Market.OWNED
    )
