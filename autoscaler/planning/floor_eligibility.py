"""Eligibility for a floor (minimum of instances): an instance counts only if it can serve one
request after another within the SLO.

An instance that meets the SLO percentile only when it is almost idle is the cheapest way to satisfy
a floor, but it does not help the first requests. By Little's law, the number of concurrent requests
is the capacity multiplied by the time that the SLO allows for a request of mean length. This number
must be at least one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import Reason
from autoscaler.planning.planning_problem import PlanningProblem
from topics.reason_codes import ReasonCode

_RUNNING_SHARE = 0.5
"""A running instance counts from this share of the minimum capacity, so that a small change in
lengths does not replace it."""


def min_useful_req_per_s(problem: PlanningProblem, model: str) -> float:
    """The smallest capacity with which a new instance of `model` counts towards its floor; 0 = any
    instance counts.

    It is 0 in three cases: no candidate reaches the minimum within the SLO, the rates are declared
    (models of components), or the rates are given by type (budget mode).
    """
    least = _one_at_a_time(problem, model)
    return least if max(_rates(problem, model), default=0.0) >= least else 0.0


def counts_towards_floor(combo: Combo, least: float, runs: bool) -> bool:
    """Whether `combo` counts towards a floor that requires `least` requests/s of each instance.
    runs: the combo is running, so a share of `least` is enough."""
    return combo.req_per_s >= least * (_RUNNING_SHARE if runs else 1.0)


def count_useful(problem: PlanningProblem, model: str, counted: Iterable[tuple[Combo, int]]) -> int:
    """How many of the instances in `counted` count towards the floor of `model`. The minimum
    capacity is lower for running instances than for new ones."""
    least = min_useful_req_per_s(problem, model)
    return sum(
        n for c, n in counted if counts_towards_floor(c, least, bool(problem.fleet.get(c.id)))
    )


def keeps_floor(problem: PlanningProblem, model: str) -> bool:
    """Whether the running instances of `model` meet its floor, independent of the candidates."""
    least, running = _one_at_a_time(problem, model), problem.running_combos(model)
    enough = sum(n for combo, n in running if counts_towards_floor(combo, least, runs=True))
    return enough >= problem.cluster.service(model).min_instances


def no_useful_instance(problem: PlanningProblem) -> Iterator[Reason]:
    """A reason for each model with a floor towards which no candidate counts."""
    for model in problem.planned_models():
        most = max(_rates(problem, model), default=math.inf)
        if most < _one_at_a_time(problem, model):
            yield Reason(ReasonCode.ONE_AFTER_ANOTHER, model, quantities=(most,))


def _rates(problem: PlanningProblem, model: str) -> list[float]:
    """Capacities of the candidates of `model` that may count towards its floor and meet the SLO."""
    service = problem.cluster.service(model)
    if not service.min_instances or service.graph is not None or problem.types:
        return []
    return [c.req_per_s for c in problem.candidates.get(model, ()) if c.meets_slo]


def _one_at_a_time(problem: PlanningProblem, model: str) -> float:
    """Requests/s of an instance that serves one request of mean length at a time, each as slow as
    the SLO allows."""
    slo, lengths = problem.cluster.service(model).slo, problem.demands[model].lengths
    return 1000.0 / (slo.ttft_ms + lengths.output_tokens * slo.tpot_ms)
