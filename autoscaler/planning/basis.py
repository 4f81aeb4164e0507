"""What the capacities of a plan rest on: the user's own measurements, where there are any.

Owns that look-up, and how far capacities may be off. Knows no words.
"""

from __future__ import annotations

from autoscaler.performance.intervals import rate_interval
from autoscaler.performance.profile import Measurement, Profile
from autoscaler.planning.plan import Plan
from autoscaler.planning.problem import PlanningProblem


def measurements_in(
    problem: PlanningProblem, plan: Plan, profile: Profile
) -> tuple[tuple[str, Measurement], ...]:
    """(model, measurement) for every measured kind of GPU that `plan` puts the model on."""
    found: dict[tuple[str, str, int], Measurement] = {}
    for target in plan.targets:
        if not target.count:
            continue
        spec = problem.cluster.service(target.combo.model).architecture
        for member in target.combo.members:
            gpu = problem.cluster.pool(member.pool).gpu
            own = profile.measurement(spec, gpu, member.gpus)
            if own is not None:
                found[target.combo.model, own.gpu, own.tp] = own
    return tuple((model, own) for (model, _, _), own in found.items())


def capacity_intervals(
    problem: PlanningProblem, plan: Plan, profile: Profile
) -> dict[str, tuple[float, float]]:
    """Least and most capacity of every model that got any, in requests/s, in nine cases of ten.

    Instances of a model are off together, so their intervals add up.
    """
    found: dict[str, tuple[float, float]] = {}
    for target in plan.targets:
        combo = target.combo
        if not target.count or combo.model not in plan.capacity_req_per_s:
            continue
        spec = problem.cluster.service(combo.model).architecture
        bounds = [
            rate_interval(spec, profile.measurement(spec, problem.cluster.pool(m.pool).gpu, m.gpus))
            for m in combo.members
        ]
        low, high = found.get(combo.model, (0.0, 0.0))
        rate = target.count * combo.req_per_s
        found[combo.model] = (
            low + rate * min(bound[0] for bound in bounds),
            high + rate * max(bound[1] for bound in bounds),
        )
    return found
