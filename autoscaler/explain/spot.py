"""What if all spot is lost. Owns this one question."""

from __future__ import annotations

from autoscaler.explain.values import SpotLoss
from autoscaler.planning.combo_ilp import is_spot
from autoscaler.planning.plan import Plan
from autoscaler.planning.problem import PlanningProblem


def spot_losses(problem: PlanningProblem, plan: Plan) -> tuple[SpotLoss, ...]:
    """Per model with combos on spot: what the rest could serve at full load, until replaced."""
    losses = []
    for model in problem.demands:
        targets = [target for target in plan.of(model) if target.count]
        lost = [target for target in targets if is_spot(target.combo)]
        demand = problem.demands[model].req_per_s
        if not lost or demand <= 0.0:
            continue
        left = sum(t.count * t.combo.req_per_s for t in targets if not is_spot(t.combo))
        losses.append(SpotLoss(model, min(1.0, left / demand), max(t.combo.start_s for t in lost)))
    return tuple(losses)
