"""The worth of prefix caches to a plan: the GPUs that it would need in addition without hits."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import evaluate_combo
from autoscaler.planning.plan import Plan
from autoscaler.planning.planning_problem import PlanningProblem, arrivals_of


def gpus_saved_by_hits(problem: PlanningProblem, plan: Plan, model: str, profile: Profile) -> float:
    """GPUs that the same combos of `model` would need in addition if no prompt token came from a
    prefix cache. 0 without hits, and for models of components."""
    demand, service = problem.demands[model], problem.cluster.service(model)
    if not demand.lengths.prefix_hit or service.graph is not None:
        return 0.0
    cold = replace(demand.lengths, prefix_hit=0.0)
    saved = 0.0
    for target in plan.targets_of(model):
        if not target.count:
            continue
        combo = target.combo
        without = evaluate_combo(
            combo.id, problem.cluster, service, cold, profile, arrivals_of(demand, service)
        )
        gpus = target.count * sum(combo.gpus_by_pool().values())
        saved += gpus * max(0.0, combo.req_per_s / without.req_per_s - 1.0)
    return saved
