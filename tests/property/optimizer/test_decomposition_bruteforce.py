"""Small random problems with every kind of row, solved by each method and by brute force."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass

import numpy as np
import pytest

from autoscaler.optimizer import covers
from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_form import has_cover_form
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status
from autoscaler.optimizer.solve import solve

_PRECISION = 1.2e-3
"""A fraction counts as reached within this precision, which the search proves."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column: cost, upper limit, requests/s by row, use by resource."""

    cost: float
    upper: float
    serves: dict[int, float]
    uses: dict[int, float]


def problem_of(
    columns: list[Column], demand: list[float], capacity: list[float], priority: list[int]
) -> AllocationProblem:
    serve = [sorted(one.serves.items()) for one in columns]
    use = [sorted(one.uses.items()) for one in columns]
    return AllocationProblem(
        cost_usd_per_h=np.array([one.cost for one in columns]),
        upper=np.array([one.upper for one in columns]),
        serve_indptr=np.cumsum([0] + [len(s) for s in serve]),
        serve_row=np.array([r for s in serve for r, _ in s], dtype=np.int64),
        serve_rate=np.array([v for s in serve for _, v in s], dtype=np.float64),
        use_indptr=np.cumsum([0] + [len(u) for u in use]),
        use_resource=np.array([r for u in use for r, _ in u], dtype=np.int64),
        use_amount=np.array([v for u in use for _, v in u], dtype=np.float64),
        demand_req_per_s=np.array(demand),
        priority=np.array(priority, dtype=np.int64),
        capacity=np.array(capacity),
    )


def drawn(seed: int, cover_form: bool) -> AllocationProblem:
    """A problem of up to three rows in two classes and six columns.

    Without `cover_form`, columns may serve two rows, and there are rented nodes and a budget.
    """
    rng = random.Random(seed)
    rows, resources = rng.randint(1, 3), rng.randint(1, 3)

    def quarter(least: int = 1, most: int = 40) -> float:
        return rng.randint(least, most) / 4

    columns = []
    for _ in range(rng.randint(2, 6)):
        served = {rng.randrange(rows)}
        if not cover_form and rng.random() < 0.4:
            served.add(rng.randrange(rows))
        uses = {
            rng.randrange(resources): float(rng.randint(1, 3))
            for _ in range(rng.randint(1 if cover_form else 0, 2))
        }
        upper = float(rng.choice([1, 2, 3, 3]))
        columns.append(Column(quarter(), upper, {row: quarter() for row in served}, uses))
    capacity = [float(rng.randint(0, 6)) for _ in range(resources)]
    if not cover_form and rng.random() < 0.7:
        nodes = {rng.randrange(resources): -float(rng.randint(1, 4))}
        columns.append(Column(quarter(), float(rng.randint(1, 2)), {}, nodes))
        if rng.random() < 0.5:
            budget = len(capacity)
            capacity.append(quarter(8, 80))
            columns = [
                Column(c.cost, c.upper, c.serves, {**c.uses, budget: c.cost}) for c in columns
            ]
    demand = [quarter(2, 60) for _ in range(rows)]
    return problem_of(columns, demand, capacity, [rng.randint(0, 1) for _ in range(rows)])


def every_allocation(problem: AllocationProblem) -> tuple[Floats, Floats]:
    """The served fractions (a, m) and costs (a,) of every allocation that fits."""
    ranges = [range(int(upper) + 1) for upper in problem.upper]
    counts = np.array(list(itertools.product(*ranges)), dtype=np.float64)
    serve = np.zeros((problem.columns, len(problem.demand_req_per_s)))
    use = np.zeros((problem.columns, len(problem.capacity)))
    column = np.arange(problem.columns)
    serve[np.repeat(column, np.diff(problem.serve_indptr)), problem.serve_row] = problem.serve_rate
    use[np.repeat(column, np.diff(problem.use_indptr)), problem.use_resource] = problem.use_amount
    counts = counts[(counts @ use <= problem.capacity + 1e-9).all(axis=1)]
    fractions = np.minimum(1.0, counts @ serve / problem.demand_req_per_s)
    return fractions, counts @ problem.cost_usd_per_h


def assert_best(problem: AllocationProblem, got: AllocationResult) -> None:
    """Assert that the smallest served fraction is as large as possible, class by class.

    No cheaper allocation may serve as much.
    """
    assert got.status is not Status.FAILED
    fractions, cost = every_allocation(problem)
    left = np.ones(len(cost), dtype=np.bool_)
    for level in np.unique(problem.priority):
        rows = problem.priority == level
        best = float(fractions[left][:, rows].min(axis=1).max())
        assert got.served_target[rows].min() >= best * (1.0 - _PRECISION) - 1e-9
        assert got.served_fraction_bound[rows].min() >= best - 1e-7
        left &= (fractions >= got.served_target - 1e-7)[:, rows].all(axis=1)
    least = float(cost[(fractions >= got.served_target - 1e-7).all(axis=1)].min())
    assert got.cost_usd_per_h == pytest.approx(least, rel=1e-6)
    assert got.lower_bound_usd_per_h <= least + 1e-6


@pytest.mark.parametrize("first", range(0, 200, 20))
@pytest.mark.parametrize("method", ["MIP", "decomposition"])
def test_problems_in_cover_form_match_brute_force(
    first: int, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    least = 0 if method == "decomposition" else np.inf
    monkeypatch.setattr(covers, "COVER_COLUMNS", least)
    for seed in range(first, first + 20):
        problem = drawn(seed, cover_form=True)
        assert has_cover_form(problem)
        assert_best(problem, solve(problem, SolveOptions(gap=1e-9)))


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_problems_of_all_row_kinds_match_brute_force(first: int) -> None:
    for seed in range(first, first + 20):
        problem = drawn(seed, cover_form=False)
        assert_best(problem, solve(problem, SolveOptions(gap=1e-9)))
