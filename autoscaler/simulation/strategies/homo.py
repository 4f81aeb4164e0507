"""Homo: each model on combos of one GPU type, the most goodput per USD first. The simplest
baseline.

The models are planned in the order of priority and demand. Each model gets the combo with the most
goodput per USD, and the next best combo if the GPUs run out. Later models get nothing if earlier
models leave no GPUs. Source: Coral sec. 6 ("Homo").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.domain.combo import Combo
from autoscaler.planning.binding_constraints import available_gpus
from autoscaler.planning.candidate_combos import ranking_usd_per_h
from autoscaler.planning.combo_usage import is_spot
from autoscaler.planning.decode_solution import decode_plan
from autoscaler.planning.model_constraints import missing_req_per_s, spot_limit_applies
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.plan_notes import with_notes
from autoscaler.planning.planning_problem import PlanningProblem


@dataclass(frozen=True, slots=True)
class HomoStrategy:
    """Greedy homogeneous strategy."""

    name: str = "homo"

    def solve(self, problem: PlanningProblem) -> Plan:
        """Plan one model after the other; spot is used only up to a service's spot share."""
        used = problem.fixed_gpus()
        counts: dict[str, int] = {}
        services = [problem.cluster.service(model) for model in problem.planned_models()]
        for service in sorted(
            services, key=lambda s: (-s.priority, -problem.demands[s.model].req_per_s, s.model)
        ):
            missing = missing_req_per_s(problem, service.model)
            taken = sum(count for _, count in problem.fixed_combos(service.model))
            least, most = service.min_instances, service.max_instances or 10**6
            bounded = spot_limit_applies(problem, service)
            spot = service.spot_share * missing if bounded else math.inf
            kinds = _homogeneous(problem, service.model)
            while kinds and (missing > 1e-9 or taken < least) and taken < most:
                wanted = max(missing, 1e-9)
                best = min(kinds, key=lambda c: (_usd_per_req(c, problem), c.id))
                kinds.remove(best)
                count = max(math.ceil(wanted / best.req_per_s - 1e-9), least - taken)
                if is_spot(best) and bounded:
                    count = min(count, int(spot / best.req_per_s + 1e-9))
                count = _place(best, min(count, most - taken), used, problem)
                if not count:
                    continue
                counts[best.id] = counts.get(best.id, 0) + count
                missing -= count * best.req_per_s
                spot -= count * best.req_per_s if is_spot(best) else 0.0
                taken += count
        return with_notes(problem, decode_plan(problem, self.name, counts, PlanStatus.HEURISTIC))


def _homogeneous(problem: PlanningProblem, model: str) -> list[Combo]:
    """Candidates whose GPUs are all of one type."""
    gpus = {pool.id: pool.gpu.name for pool in problem.cluster.pools}
    return [
        combo
        for combo in problem.candidates[model]
        if len({gpus[pool] for pool in combo.gpus_by_pool()}) == 1
    ]


def _usd_per_req(combo: Combo, problem: PlanningProblem) -> float:
    """The inverse of goodput per USD."""
    return ranking_usd_per_h(combo, problem.pools()) / combo.req_per_s


def _place(combo: Combo, count: int, used: dict[str, int], problem: PlanningProblem) -> int:
    """Add up to `count` instances of `combo` to the GPUs `used`, as far as there is room; return
    the number of instances added."""
    taken = combo.gpus_by_pool()
    pools = problem.pools()
    left = (available_gpus(problem, pools[i], used) // gpus for i, gpus in taken.items())
    count = max(0, min(count, *left))
    for pool, gpus in taken.items():
        used[pool] = used.get(pool, 0) + gpus * count
    return count
