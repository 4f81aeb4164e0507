"""Notes of a plan: constraints that it does not satisfy, and the causes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.planning.binding_constraints import binding_reasons
from autoscaler.planning.constraint_check import (
    floor_constraint,
    spot_constraint,
    survival_constraint,
    useful_floor_constraint,
    violated_constraints,
)
from autoscaler.planning.memory_fit import misfit
from autoscaler.planning.model_constraints import FLOOR, OFF_SPOT, RETAINED, USEFUL_FLOOR
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.survival import ALL_SPOT, ONE_NODE
from topics.reason_codes import ReasonCode

_PROMISES: Mapping[str, Callable[[Service], Reason]] = {
    FLOOR: floor_constraint,
    USEFUL_FLOOR: useful_floor_constraint,
    OFF_SPOT: spot_constraint,
    ONE_NODE: survival_constraint,
    ALL_SPOT: survival_constraint,
}
"""The constraint of a service for each row kind."""


def with_notes(problem: PlanningProblem, plan: Plan) -> Plan:
    """`plan` with binding constraints, violations and notes; its status is best effort if demand is
    unserved.

    For strategies that prove nothing about cost; the strategy `shoal` adds more notes.
    """
    plan = replace(plan, violations=violated_constraints(problem, plan))
    notes = (
        *plan.notes,
        *unservable_models(problem),
        *slo_miss_notes(problem, plan),
        *_not_kept(plan),
    )
    short = bool(plan.shortfall_req_per_s) or bool(unservable_models(problem))
    status = PlanStatus.BEST_EFFORT if short else plan.status
    return replace(plan, status=status, binding=binding_reasons(problem, plan), notes=notes)


def _not_kept(plan: Plan) -> Iterator[Reason]:
    """Notes of the constraints that a strategy without full constraint support violates."""
    for broken in plan.violations:
        yield Reason(ReasonCode.NOT_KEPT, broken.subject, (plan.strategy,), because=(broken,))


def unservable_models(problem: PlanningProblem) -> tuple[Reason, ...]:
    """A reason for each model with a demand or a floor that no combo in its pools can serve."""
    return tuple(
        unservable_reason(problem, service)
        for service in map(problem.cluster.service, problem.planned_models())
        if (service.model in problem.unattainable_slos or not problem.can_be_served(service.model))
        and (problem.demands[service.model].req_per_s > 0.0 or service.min_instances)
    )


def unservable_reason(problem: PlanningProblem, service: Service) -> Reason:
    """The reason why no combo can serve `service`: the SLO, memory, or no nodes at all."""
    if service.model in problem.unattainable_slos:
        return problem.unattainable_slos[service.model].reason(service.model)
    open_to_it = [p for p in problem.cluster.pools if p.region in (service.regions or (p.region,))]
    if open_to_it and not any(pool.max_nodes for pool in open_to_it):
        return Reason(ReasonCode.NO_USABLE_NODE, service.model)
    unfit = misfit(problem.cluster, service) if service.pipelines == "none" else None
    if unfit is not None:
        return unfit.reason()
    return Reason(ReasonCode.NOTHING_SERVES_IT, service.model)


def slo_miss_notes(problem: PlanningProblem, plan: Plan) -> Iterator[Reason]:
    """A note for each model whose planned combos miss the SLO at the measured lengths, because no
    combo meets it."""
    for model in problem.planned_models():
        late = [t.combo for t in plan.targets_of(model) if t.count and not t.combo.meets_slo]
        if not late:
            continue
        slo = problem.cluster.service(model).slo
        ttft_ms = max(combo.ttft_ms for combo in late)
        tpot_ms = max(combo.tpot_ms for combo in late)
        times_ms = ttft_ms, slo.ttft_ms, tpot_ms, slo.tpot_ms
        yield Reason(ReasonCode.OUTSIDE_SLO, model, quantities=times_ms)


def prefix_hit_notes(problem: PlanningProblem) -> Iterator[Reason]:
    """A note for each model whose capacity counts on hits of prefix caches."""
    for model in problem.planned_models():
        share = problem.demands[model].lengths.prefix_hit
        if share:
            yield Reason(ReasonCode.PREFIX_HITS, model, quantities=(share,))


def rough_bound_notes(problem: PlanningProblem, plan: Plan, strict: bool) -> Iterator[Reason]:
    """A note that the gap of a plan is only rough, if survival rows were tightened. strict:
    `Formulation.survival_tightened`."""
    if strict and plan.status is PlanStatus.LIMIT and plan.gap > problem.options.gap:
        yield Reason(ReasonCode.ROUGH_BOUND)


def impossible_constraints(
    problem: PlanningProblem,
    kept: Iterable[tuple[tuple[str, str], float]],
    strict: bool,
    limited: bool,
) -> tuple[Reason, ...]:
    """A note for each constraint other than demand that the plan does not satisfy. It says whether
    the constraint is proven to be impossible, or only not planned.

    kept: satisfied fraction, by (row kind, model). strict: `Formulation.survival_tightened`.
    limited: a limit ended the search.
    """
    found: dict[tuple[str, ReasonCode], Reason] = {}
    for (what, model), fraction in kept:
        if what in ("demand", RETAINED) or fraction >= 1.0 - 1e-6:
            continue
        service = problem.cluster.service(model)
        known = not limited and (not strict or what != ONE_NODE)
        why = Reason(ReasonCode.NOT_POSSIBLE if known else ReasonCode.NOT_PLANNED)
        promise = replace(_PROMISES[what](service), because=(why,))
        found[model, promise.code] = promise
    return tuple(found.values())
