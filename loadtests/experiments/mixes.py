"""Baselines and Demystifying's search for the problem of `autoscaler.optimizer.activity_lp`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.optimizer.activity_lp import MixProblem, Unfound, least_cost
from autoscaler.optimizer.array_types import Floats, Ints


def restricted(problem: MixProblem, activities: Ints) -> MixProblem:
    """`problem` with only these activities."""
    return replace(
        problem,
        busy=problem.busy[:, activities],
        type_of=problem.type_of[activities],
        capped=problem.capped[:, activities] if len(problem.capped) else problem.capped,
    )


def even_fractions(problem: MixProblem, copies: Ints) -> Floats:
    """Distribute each request type evenly over all copies that can serve it (round robin).

    Each activity uses one configuration.
    """
    weight = (copies @ (problem.busy > 0.0)).astype(float)
    total = np.bincount(problem.type_of, weights=weight, minlength=len(problem.work))
    share: Floats = weight / np.where(total > 0.0, total, 1.0)[problem.type_of]
    return share


def makespan_by_bisection(
    problem: MixProblem, tolerance: float, seconds: float
) -> tuple[float, float] | None:
    """(feasible makespan, infeasible makespan) that differ by at most `tolerance`.

    Source: feasibility MILPs of Demystifying App. F. None if a time limit ends the search earlier.
    """
    if len(problem.unserved):
        return None
    gpus = max(1.0, float(problem.node_gpus @ problem.node_max))
    each = problem.busy.max(axis=0) * problem.work[problem.type_of]
    types = range(len(problem.work))
    low = max(float(each[problem.type_of == w].min()) for w in types) / gpus
    high = sum(float(each[problem.type_of == w].max()) for w in types)
    while high - low > tolerance:
        middle = (low + high) / 2.0
        found = least_cost(problem, 1.0 / middle, seconds, gap=np.inf)  # any feasible plan will do
        if found is Unfound.LIMIT:
            return None  # A plan may still exist.
        low, high = (middle, high) if found is Unfound.IMPOSSIBLE else (low, middle)
    return high, low
