"""Which instances count towards a floor: those that can serve one request after another.

Owns that rule. An instance whose percentile attains the SLO only while it is next to idle is the
cheapest way to keep a count and of no use to the first requests that come. By Little's law the
capacity times the time that the SLO leaves a request of mean length is how many requests the
instance holds at once; one is the least. Knows no rows and no strategy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

_KEEPS = 0.5
"""Share of the least that is enough for what runs, so that lengths that move a little do not
exchange it."""


def least_req_per_s(problem: PlanningProblem, model: str) -> float:
    """Capacity from which a new instance of `model` counts towards its floor; 0 = any counts.

    Any does where no candidate reaches that within the SLO, and where rates were declared as
    measured (models of components) or are by type (the most work for a budget).
    """
    least = _one_at_a_time(problem, model)
    return least if max(_rates(problem, model), default=0.0) >= least else 0.0


def counts(combo: Combo, least: float, runs: bool) -> bool:
    """Whether `combo` counts towards a floor for which `least` requests/s are asked of each."""
    return combo.req_per_s >= least * (_KEEPS if runs else 1.0)


def useful(problem: PlanningProblem, model: str, counted: Iterable[tuple[Combo, int]]) -> int:
    """How many of the instances `counted` count: those that run by less than new ones."""
    least = least_req_per_s(problem, model)
    return sum(n for c, n in counted if counts(c, least, bool(problem.fleet.get(c.id))))


def is_kept(problem: PlanningProblem, model: str) -> bool:
    """Whether what runs of `model` keeps its floor, whatever else may be had."""
    least, running = _one_at_a_time(problem, model), problem.running_of(model)
    enough = sum(n for combo, n in running if counts(combo, least, runs=True))
    return enough >= problem.cluster.service(model).min_instances


def barely_served(problem: PlanningProblem) -> Iterator[Reason]:
    """Models with a floor of which no instance on offer could count."""
    for model in problem.planned_models():
        most = max(_rates(problem, model), default=math.inf)
        if most < _one_at_a_time(problem, model):
            yield Reason(ReasonCode.ONE_AFTER_ANOTHER, model, quantities=(most,))


def _rates(problem: PlanningProblem, model: str) -> list[float]:
    """Capacities of the candidates among which the floor of `model` may choose, within the SLO."""
    service = problem.cluster.service(model)
    if not service.min_instances or service.graph is not None or problem.types:
        return []
    return [c.req_per_s for c in problem.candidates.get(model, ()) if c.meets_slo]


def _one_at_a_time(problem: PlanningProblem, model: str) -> float:
    """Requests/s of one after another, each of mean length and as slow as the SLO allows."""
    slo, lengths = problem.cluster.service(model).slo, problem.demands[model].lengths
    return 1000.0 / (slo.ttft_ms + lengths.output_tokens * slo.tpot_ms)
