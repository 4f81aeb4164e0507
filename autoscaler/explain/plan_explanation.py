"""Explains a plan: the reasons of every model in one value.

Each relief needs a further plan, so large problems get fewer reliefs.
"""

from __future__ import annotations

from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason, about
from autoscaler.domain.slices import NodeSlice
from autoscaler.explain.alternatives import (
    best_alternative,
    budget_relief,
    node_reliefs,
    one_fewer,
    slo_reliefs,
)
from autoscaler.explain.component_texts import pools_without_deployments, saturation
from autoscaler.explain.explanation import Explanation, ModelReasons, Rejected
from autoscaler.explain.measurement_advice import measuring
from autoscaler.explain.plan_texts import promise
from autoscaler.explain.prefix_worth import gpus_saved_by_hits
from autoscaler.explain.reason_texts import text, texts
from autoscaler.explain.rejected_gpus import impossible_pools
from autoscaler.explain.spot_exposure import savings, spot_losses
from autoscaler.performance.catalog import short_gpu_name
from autoscaler.performance.memory import adapter_bytes, cache_of
from autoscaler.performance.profile import Profile
from autoscaler.planning.constraint_check import broken_survival, survival_constraint
from autoscaler.planning.instances import LONGEST_REQUEST, NO_SPLIT, evaluate_instance
from autoscaler.planning.plan import Plan, PlanStatus, Strategy
from autoscaler.planning.plan_notes import unservable_reason
from autoscaler.planning.planning_problem import PlanningProblem, arrivals_of
from topics.reason_codes import ReasonCode

_ASK_AT_MOST = 8
_WORDS = {
    "tpot": "TPOT",
    "ttft": "TTFT",
    "memory": "KV memory",
    "sequences": "sequences per batch",
    "compute": "compute",
    NO_SPLIT: "no such split",
    LONGEST_REQUEST: "memory of the longest request",
}


def explain(
    problem: PlanningProblem, plan: Plan, profile: Profile, strategy: Strategy
) -> Explanation:
    """The reasons of `plan`, which `strategy` made for `problem`.

    Alternatives and reliefs need further plans, so only the eight models get them that are
    underserved or cost most.
    """
    if plan.status is PlanStatus.FAILED:
        return Explanation((), (), spot_losses(problem, plan))
    planned = problem.planned_models()
    if plan.work is not None:
        models = tuple(_of_budget(problem, plan, model) for model in planned)
        return Explanation(models, (), spot_losses(problem, plan))
    asked = sorted(planned, key=lambda m: (-plan.shortfall_req_per_s.get(m, 0.0), -_usd(plan, m)))
    asked = asked[:_ASK_AT_MOST]
    return Explanation(
        models=tuple(
            _of_model(problem, plan, model, profile, strategy, model in asked) for model in planned
        ),
        relief=(*budget_relief(problem, plan, strategy), *node_reliefs(problem, plan, strategy)),
        spot_loss=spot_losses(problem, plan),
        savings=savings(problem, plan, strategy),
    )


def _of_budget(problem: PlanningProblem, plan: Plan, model: str) -> ModelReasons:
    """The reasons of a plan in budget mode: the limits without which the plan could do more work.

    Budget mode does not minimise cost, so there are no cheaper alternatives.
    """
    return ModelReasons(
        model=model,
        demand_req_per_s=problem.demands[model].req_per_s,
        capacity_req_per_s=plan.capacity_req_per_s[model],
        bound_by=texts(plan.binding),
        rejected=(),
        relief=(),
        uncertain=any(target.combo.uncertain for target in plan.targets_of(model) if target.count),
    )


def _of_model(
    problem: PlanningProblem,
    plan: Plan,
    model: str,
    profile: Profile,
    strategy: Strategy,
    ask: bool,
) -> ModelReasons:
    service = problem.cluster.service(model)
    rejected: list[Rejected] = []
    fewer = one_fewer(problem, plan, model)
    if fewer is not None:
        rejected.append(fewer)
    if ask:
        other = best_alternative(problem, plan, model, strategy)
        if other is not None:
            rejected.append(other)
    if service.graph is None:
        rejected += impossible_pools(problem, service, profile)
    else:
        rejected += pools_without_deployments(problem, service, service.graph)
    return ModelReasons(
        model=model,
        demand_req_per_s=problem.demands[model].req_per_s,
        capacity_req_per_s=plan.capacity_req_per_s[model],
        bound_by=_bound_by(problem, plan, model, profile),
        rejected=tuple(rejected),
        relief=slo_reliefs(problem, plan, model, profile, strategy) if ask else (),
        uncertain=any(target.combo.uncertain for target in plan.targets_of(model) if target.count),
        measuring=measuring(problem, plan, model, profile, strategy) if ask else (),
        prefix_hit=problem.demands[model].lengths.prefix_hit,
        prefix_gpus=gpus_saved_by_hits(problem, plan, model, profile),
    )


def _bound_by(
    problem: PlanningProblem, plan: Plan, model: str, profile: Profile
) -> tuple[str, ...]:
    """The limits that determine the rate of each combo of `model` (the limits of its slower phase),
    then the utilization and the limits of the plan."""
    service = problem.cluster.service(model)
    if not any(target.count for target in plan.targets_of(model)) and (
        model in problem.unattainable_slos or not problem.can_be_served(model)
    ):
        return (text(unservable_reason(problem, service)),)
    found: list[str] = []
    for target in plan.targets_of(model):
        if target.count and service.graph is not None:
            found += saturation(target.combo, service.graph, problem.cluster.pools)
            continue
        for member in target.combo.members if target.count else ():
            if member.stage or member.count * member.req_per_s > target.combo.req_per_s * (
                1 + 1e-9
            ):
                continue  # not a limit: a pipeline, which the library sizes, or the faster phase
            pool = problem.cluster.pool(member.pool)
            demand, node = problem.demands[model], NodeSlice(pool.gpu, member.gpus)
            arrivals = arrivals_of(demand, service)
            made = evaluate_instance(
                service, node, member.phase, demand.lengths, profile, arrivals=arrivals
            )
            words = _WORDS.get(made.bound_by, made.bound_by)
            found.append(_memory(service, node) if made.bound_by == "memory" else words)
    if model not in plan.shortfall_req_per_s:
        found.append(f"utilization {service.utilization:.0%}")
    if _survival_binds(problem, plan, service):
        found.append(promise(survival_constraint(service)))
    found += texts(about(plan.binding, model))
    if model in plan.shortfall_req_per_s:
        found += texts(b for b in plan.binding if _holds(b, problem, model))
    return tuple(dict.fromkeys(found))


def _survival_binds(problem: PlanningProblem, plan: Plan, service: Service) -> bool:
    """Whether the plan holds more than the demand needs only because `service` must survive a
    loss."""
    counts = [(target.combo, target.count) for target in plan.targets_of(service.model)]
    needed = problem.needed_req_per_s(service.model)
    for place, (combo, count) in enumerate(counts):
        if not count or plan.capacity_req_per_s[service.model] - combo.req_per_s < needed:
            continue
        fewer = [*counts[:place], (combo, count - 1), *counts[place + 1 :]]
        if any(broken_survival(problem, service, [one for one in fewer if one[1]])):
            return True
    return False


def _memory(service: Service, node: NodeSlice) -> str:
    """Text for KV memory as the limit, e.g. "KV memory (31 GB next to 141 GB of weights on
    4xL40S)"."""
    spec = service.architecture
    weights_gb = (spec.weight_bytes + adapter_bytes(spec, node.gpus)) / 1e9
    cache = cache_of(spec, node.gpu, node.gpus)
    kv_gb = cache.blocks * cache.block_bytes * node.gpus / 1e9
    where = f"{node.gpus}x{short_gpu_name(node.gpu.name)}"
    known = ", measured at a start" if spec.room(node.gpu.name, node.gpus) else ""
    return (
        f"KV memory ({kv_gb:.0f} GB{known} next to {weights_gb:.0f} GB of weights on {where}; "
        "more GPUs per instance would give more)"
    )


def _holds(binding: Reason, problem: PlanningProblem, model: str) -> bool:
    """Whether `binding` (the budget or a full pool) can cause the shortfall of `model`."""
    if binding.code is ReasonCode.BUDGET:
        return True
    pools = {pool for combo in problem.candidates.get(model, ()) for pool in combo.gpus_by_pool()}
    return binding.subject in pools


def _usd(plan: Plan, model: str) -> float:
    return sum(target.count * target.combo.usd_per_h for target in plan.targets_of(model))
