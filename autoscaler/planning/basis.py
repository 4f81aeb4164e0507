"""What the capacities of a plan rest on: the user's own measurements, where there are any.

Owns that look-up. Knows no words.
"""

from __future__ import annotations

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
