"""What a plan could not keep, in words for people.

Owns these sentences. Decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from autoscaler.domain.cluster import Service
from autoscaler.planning.binding_constraints import bindings
from autoscaler.planning.constraint_check import broken_promises
from autoscaler.planning.memory_fit import misfit
from autoscaler.planning.model_constraints import OFF_SPOT, STAYING
from autoscaler.planning.plan import Broken, Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.survival import ONE_NODE


def with_words(problem: PlanningProblem, plan: Plan) -> Plan:
    """`plan` with what binds and what could not be served; best effort where something could not.

    For strategies without a proof; `shoal` knows more.
    """
    plan = replace(plan, broken=broken_promises(problem, plan))
    notes = (*plan.notes, *hopeless(problem), *outside_slo(problem, plan), *_not_kept(plan))
    short = bool(plan.shortfall_req_per_s) or bool(hopeless(problem))
    status = PlanStatus.BEST_EFFORT if short else plan.status
    return replace(plan, status=status, binding=bindings(problem, plan), notes=notes)


def _not_kept(plan: Plan) -> Iterator[str]:
    """What a strategy that does not plan for every promise leaves broken."""
    for broken in plan.broken:
        who = "" if broken.subject == "*" else f"{broken.subject}: "
        yield f"{who}{broken.what} is not kept by {plan.strategy}: {broken.detail}"


def hopeless(problem: PlanningProblem) -> tuple[str, ...]:
    """Models with a demand or a floor that nothing in their pools can serve."""
    return tuple(
        f"{service.model}: {why_hopeless(problem, service)}"
        for service in map(problem.cluster.service, problem.planned_models())
        if (service.model in problem.unreachable or not problem.can_be_served(service.model))
        and (problem.demands[service.model].req_per_s > 0.0 or service.min_instances)
    )


def why_hopeless(problem: PlanningProblem, service: Service) -> str:
    """Why nothing in its pools can serve `service`: the SLO, memory, or no nodes at all."""
    if service.model in problem.unreachable:
        return str(problem.unreachable[service.model])
    open_to_it = [p for p in problem.cluster.pools if p.region in (service.regions or (p.region,))]
    if open_to_it and not any(pool.max_nodes for pool in open_to_it):
        return "no usable node is left in the pools it may use"
    unfit = misfit(problem.cluster, service) if service.pipelines == "none" else None
    return str(unfit) if unfit is not None else "no pool it may use can hold and serve it"


def outside_slo(problem: PlanningProblem, plan: Plan) -> Iterator[str]:
    """Models planned on combos that miss the SLO at the measured lengths, as nothing meets it."""
    for model in problem.planned_models():
        late = [t.combo for t in plan.of(model) if t.count and not t.combo.meets_slo]
        if not late:
            continue
        slo = problem.cluster.service(model).slo
        ttft_ms = max(combo.ttft_ms for combo in late)
        tpot_ms = max(combo.tpot_ms for combo in late)
        yield (
            f"{model}: planned on GPUs that miss the SLO at the present request lengths "
            f"(predicted TTFT {ttft_ms:.0f} ms of {slo.ttft_ms:g} ms, "
            f"TPOT {tpot_ms:.0f} ms of {slo.tpot_ms:g} ms)"
        )


def rough_bound(problem: PlanningProblem, plan: Plan, strict: bool) -> Iterator[str]:
    """That the gap says little of a plan of `strict` arrays, see `Arrays`."""
    if strict and plan.status is PlanStatus.LIMIT and plan.gap > problem.options.gap:
        yield (
            f"{ONE_NODE}: with so many models and pools the bound counts little of it, "
            "so the gap may be much smaller"
        )


def not_possible(
    problem: PlanningProblem,
    kept: Iterable[tuple[tuple[str, str], float]],
    strict: bool,
    limited: bool,
) -> tuple[Broken, ...]:
    """Promises that no plan keeps beside the demand, where that is known. kept: fraction by
    (what, model). strict: see `Arrays`; limited: a limit ended the search."""
    found: dict[tuple[str, str], Broken] = {}
    for (what, model), fraction in kept:
        if what in ("demand", STAYING) or fraction >= 1.0 - 1e-6:
            continue
        service = problem.cluster.service(model)
        words = {
            OFF_SPOT: f"spot <= {service.spot_share:.0%}",
            "floor": f"floor of {service.min_instances} instances",
        }.get(what, what)
        known = not limited and (not strict or what != ONE_NODE)
        why = (
            "cannot be kept with the capacity available"
            if known
            else "is not kept by any plan that was found"
        )
        found[model, words] = Broken(model, words, why)
    return tuple(found.values())
