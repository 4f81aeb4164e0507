"""Effects of spot nodes on a plan: the savings, and the capacity that remains if all spot nodes are
lost."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.explain.alternatives import is_answer, question_options
from autoscaler.explain.explanation import Saving, SpotLoss
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.plan import Plan, Strategy
from autoscaler.planning.planning_problem import PlanningProblem


def spot_losses(problem: PlanningProblem, plan: Plan) -> tuple[SpotLoss, ...]:
    """For each model with combos on spot: the share of its demand that the other combos serve at
    full load until the spot combos are replaced."""
    losses = []
    for model in problem.demands:
        targets = [target for target in plan.targets_of(model) if target.count]
        lost = [target for target in targets if is_spot(target.combo)]
        demand = problem.demands[model].req_per_s
        if not lost or demand <= 0.0:
            continue
        left = sum(t.count * t.combo.req_per_s for t in targets if not is_spot(t.combo))
        losses.append(SpotLoss(model, min(1.0, left / demand), max(t.combo.start_s for t in lost)))
    return tuple(losses)


def savings(problem: PlanningProblem, plan: Plan, strategy: Strategy) -> tuple[Saving, ...]:
    """The difference between the current and the planned cost, split into the parts due to sizing
    and due to spot. The cost of a plan without spot separates the two. Empty if there is no such
    plan, because fixed instances use spot or because no other capacity serves as much demand.
    """
    if not _on_spot(plan) or plan.shortfall_req_per_s:
        return ()
    services = tuple(replace(service, spot_share=0.0) for service in problem.cluster.services)
    cluster = replace(problem.cluster, services=services)
    options = question_options(problem)
    without = strategy.solve(replace(problem, cluster=cluster, options=options))
    less = without.shortfall_req_per_s or len(without.violations) > len(plan.violations)
    if not is_answer(without) or less or _on_spot(without):
        return ()
    return (
        Saving("sizing", without.cost_usd_per_h - plan.now_usd_per_h),
        Saving("spot", plan.cost_usd_per_h - without.cost_usd_per_h),
    )


def _on_spot(plan: Plan) -> bool:
    return any(target.count and is_spot(target.combo) for target in plan.targets)
