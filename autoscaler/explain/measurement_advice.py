"""Measurement advice: the benefit of measuring a model on a GPU type that plans use cautiously.

The benefit is the difference to a second plan, in which a measurement has confirmed the prediction.
"""

from __future__ import annotations

from autoscaler.explain.alternatives import changed, is_answer
from autoscaler.explain.explanation import Measuring
from autoscaler.performance.profile import Profile
from autoscaler.planning.capacity_provenance import cautious_gpus, without_caution
from autoscaler.planning.plan import Plan, Strategy
from autoscaler.planning.planning_problem import PlanningProblem

_CENT = 0.005


def measuring(
    problem: PlanningProblem, plan: Plan, model: str, profile: Profile, strategy: Strategy
) -> tuple[Measuring, ...]:
    """The benefit for each GPU type that `model` uses, if its engines prove to be as fast as
    predicted.

    The largest benefit comes first; GPU types without a benefit are omitted. Both compared plans
    keep the other models as planned and ignore transition costs.
    """
    gpus = {
        gpu
        for target in plan.targets_of(model)
        if target.count
        for gpu in cautious_gpus(target.combo, problem.cluster, profile)
    }
    if not gpus:
        return ()
    found = []
    now = strategy.solve(changed(problem, plan, (model,)))
    for gpu in sorted(gpus) if is_answer(now) else ():
        sure = tuple(
            without_caution(combo, problem.cluster, profile, (gpu,))
            for combo in problem.candidates[model]
        )
        then = strategy.solve(changed(problem, plan, (model,), {model: sure}))
        if not is_answer(now, then):
            continue
        saves = now.cost_usd_per_h - then.cost_usd_per_h
        short = now.shortfall_req_per_s.get(model, 0.0)
        serves = short - then.shortfall_req_per_s.get(model, 0.0)
        if serves > 1e-6 or saves > _CENT:
            found.append(Measuring(gpu, saves, max(0.0, serves)))
    return tuple(sorted(found, key=lambda m: (-m.serves_req_per_s, -m.saves_usd_per_h)))
