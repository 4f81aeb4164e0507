"""Eligibility for a floor: an instance counts if it can serve one request after another.

An instance that meets the SLO percentile only when almost idle is the cheapest way to satisfy a
count, but it does not help the first requests. By Little's law, capacity times the time that the
SLO allows for a request of mean length is the number of concurrent requests. The minimum is one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

_RUNNING_SHARE = 0.5
"""Share of the minimum that is enough for a running instance, so that a small change in lengths
does not replace it."""


def min_useful_req_per_s(problem: PlanningProblem, model: str) -> float:
    """Capacity from which a new instance of `model` counts towards its floor; 0 = any counts.

    It is 0 if no candidate reaches the minimum within the SLO, and if the rates were declared as
    measured (models of components) or are by type (budget mode).
    """
    least = _one_at_a_time(problem, model)
    return least if max(_rates(problem, model), default=0.0) >= least else 0.0


def counts_towards_floor(combo: Combo, least: float, runs: bool) -> bool:
    """Whether `combo` counts towards a floor that asks for `least` requests/s of each instance."""
    return combo.req_per_s >= least * (_RUNNING_SHARE if runs else 1.0)


def count_useful(problem: PlanningProblem, model: str, counted: Iterable[tuple[Combo, int]]) -> int:
    """Number of the instances `counted` that count; running ones need less than new ones."""
    least = min_useful_req_per_s(problem, model)
    return sum(
        n for c, n in counted if counts_towards_floor(c, least, bool(problem.fleet.get(c.id)))
    )


def keeps_floor(problem: PlanningProblem, model: str) -> bool:
    """Whether the running instances of `model` meet its floor, whatever the candidates are."""
    least, running = _one_at_a_time(problem, model), problem.running_combos(model)
    enough = sum(n for combo, n in running if counts_towards_floor(combo, least, runs=True))
    return enough >= problem.cluster.service(model).min_instances


def no_useful_instance(problem: PlanningProblem) -> Iterator[Reason]:
    """Models with a floor towards which no candidate counts."""
    for model in problem.planned_models():
        most = max(_rates(problem, model), default=math.inf)
        if most < _one_at_a_time(problem, model):
            yield Reason(ReasonCode.ONE_AFTER_ANOTHER, model, quantities=(most,))


def _rates(problem: PlanningProblem, model: str) -> list[float]:
    """Capacities of the candidates for the floor of `model` that meet the SLO."""
    service = problem.cluster.service(model)
    if not service.min_instances or service.graph is not None or problem.types:
        return []
    return [c.req_per_s for c in problem.candidates.get(model, ()) if c.meets_slo]


def _one_at_a_time(problem: PlanningProblem, model: str) -> float:
    """Requests/s of sequential requests of mean length, each as slow as the SLO allows."""
    slo, lengths = problem.cluster.service(model).slo, problem.demands[model].lengths
    return 1000.0 / (slo.ttft_ms + lengths.output_tokens * slo.tpot_ms)
