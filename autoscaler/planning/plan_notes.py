"""What a plan could not keep, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.planning.binding_constraints import bindings
from autoscaler.planning.constraint_check import (
    broken_promises,
    floor_promise,
    spot_promise,
    survival_promise,
    useful_floor_promise,
)
from autoscaler.planning.memory_fit import misfit
from autoscaler.planning.model_constraints import FLOOR, OFF_SPOT, STAYING, USEFUL_FLOOR
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.survival import ALL_SPOT, ONE_NODE
from topics.reason_codes import ReasonCode

_PROMISES: Mapping[str, Callable[[Service], Reason]] = {
    FLOOR: floor_promise,
    USEFUL_FLOOR: useful_floor_promise,
    OFF_SPOT: spot_promise,
    ONE_NODE: survival_promise,
    ALL_SPOT: survival_promise,
}
"""By the name of the row that asks for it."""


def with_words(problem: PlanningProblem, plan: Plan) -> Plan:
    """`plan` with what binds and what could not be served; best effort where something could not.

    For strategies without a proof; `shoal` knows more.
    """
    plan = replace(plan, broken=broken_promises(problem, plan))
    notes = (*plan.notes, *hopeless(problem), *outside_slo(problem, plan), *_not_kept(plan))
    short = bool(plan.shortfall_req_per_s) or bool(hopeless(problem))
    status = PlanStatus.BEST_EFFORT if short else plan.status
    return replace(plan, status=status, binding=bindings(problem, plan), notes=notes)


def _not_kept(plan: Plan) -> Iterator[Reason]:
    """What a strategy that does not plan for every promise leaves broken."""
    for broken in plan.broken:
        yield Reason(ReasonCode.NOT_KEPT, broken.subject, (plan.strategy,), because=(broken,))


def hopeless(problem: PlanningProblem) -> tuple[Reason, ...]:
    """Models with a demand or a floor that nothing in their pools can serve."""
    return tuple(
        why_hopeless(problem, service)
        for service in map(problem.cluster.service, problem.planned_models())
        if (service.model in problem.unreachable or not problem.can_be_served(service.model))
        and (problem.demands[service.model].req_per_s > 0.0 or service.min_instances)
    )


def why_hopeless(problem: PlanningProblem, service: Service) -> Reason:
    """Why nothing in its pools can serve `service`: the SLO, memory, or no nodes at all."""
    if service.model in problem.unreachable:
        return problem.unreachable[service.model].reason(service.model)
    open_to_it = [p for p in problem.cluster.pools if p.region in (service.regions or (p.region,))]
    if open_to_it and not any(pool.max_nodes for pool in open_to_it):
        return Reason(ReasonCode.NO_USABLE_NODE, service.model)
    unfit = misfit(problem.cluster, service) if service.pipelines == "none" else None
    if unfit is not None:
        return unfit.reason()
    return Reason(ReasonCode.NOTHING_SERVES_IT, service.model)


def outside_slo(problem: PlanningProblem, plan: Plan) -> Iterator[Reason]:
    """Models planned on combos that miss the SLO at the measured lengths, as nothing meets it."""
    for model in problem.planned_models():
        late = [t.combo for t in plan.of(model) if t.count and not t.combo.meets_slo]
        if not late:
            continue
        slo = problem.cluster.service(model).slo
        ttft_ms = max(combo.ttft_ms for combo in late)
        tpot_ms = max(combo.tpot_ms for combo in late)
        times_ms = ttft_ms, slo.ttft_ms, tpot_ms, slo.tpot_ms
        yield Reason(ReasonCode.OUTSIDE_SLO, model, quantities=times_ms)


def rough_bound(problem: PlanningProblem, plan: Plan, strict: bool) -> Iterator[Reason]:
    """That the gap says little of a plan of `strict` arrays, see `Arrays`."""
    if strict and plan.status is PlanStatus.LIMIT and plan.gap > problem.options.gap:
        yield Reason(ReasonCode.ROUGH_BOUND)


def not_possible(
    problem: PlanningProblem,
    kept: Iterable[tuple[tuple[str, str], float]],
    strict: bool,
    limited: bool,
) -> tuple[Reason, ...]:
    """Promises that no plan keeps beside the demand, where that is known. kept: fraction by
    (what, model). strict: see `Arrays`; limited: a limit ended the search."""
    found: dict[tuple[str, ReasonCode], Reason] = {}
    for (what, model), fraction in kept:
        if what in ("demand", STAYING) or fraction >= 1.0 - 1e-6:
            continue
        service = problem.cluster.service(model)
        known = not limited and (not strict or what != ONE_NODE)
        why = Reason(ReasonCode.NOT_POSSIBLE if known else ReasonCode.NOT_PLANNED)
        promise = replace(_PROMISES[what](service), because=(why,))
        found[model, promise.code] = promise
    return tuple(found.values())
