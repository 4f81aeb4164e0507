"""Independent parts of a problem, which share no row and no resource."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.optimizer.components import parts
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import SolveOptions, Status
from autoscaler.optimizer.solve import solve

TWO = AllocationProblem(  # columns 0 and 2: row 0, resource 1; column 1: row 1, resource 0
    cost_usd_per_h=np.array([1.0, 2.0, 3.0]),
    upper=np.full(3, np.inf),
    serve_indptr=np.array([0, 1, 2, 3]),
    serve_row=np.array([0, 1, 0]),
    serve_rate=np.array([1.0, 1.0, 5.0]),
    use_indptr=np.array([0, 1, 2, 3]),
    use_resource=np.array([1, 0, 1]),
    use_amount=np.array([1.0, 1.0, 1.0]),
    demand_req_per_s=np.array([4.0, 3.0]),
    priority=np.array([0, 0]),
    capacity=np.array([2.0, 8.0]),
)
SHARED = replace(TWO, use_resource=np.array([0, 0, 0]))


def test_columns_that_share_a_row_or_a_resource_are_in_one_part() -> None:
    found = parts(TWO)
    assert [(p.ids.tolist(), p.rows.tolist()) for p in found] == [([1], [1]), ([0, 2], [0])]
    assert found[1].problem.capacity.tolist() == [8.0]
    assert found[1].problem.served_req_per_s(np.array([2, 1])).tolist() == [7.0]
    assert [p.ids.tolist() for p in parts(SHARED)] == [[0, 1, 2]]


def test_a_shortage_in_one_part_does_not_reduce_the_others() -> None:
    """Row 1 gets two of the three units that it needs. Row 0 still gets all of its demand."""
    got = solve(TWO, SolveOptions())
    assert got.status is Status.BEST_EFFORT
    assert got.counts.tolist() == [0, 2, 1]
    assert got.served_fraction_bound.tolist() == [1.0, 2.0 / 3.0]
    assert got.cost_usd_per_h == got.lower_bound_usd_per_h == 7.0


def test_a_row_that_no_column_serves_does_not_reduce_others() -> None:
    nothing = replace(TWO, demand_req_per_s=np.array([4.0, 1.0, 1.0]), priority=np.array([0, 0, 0]))
    got = solve(nothing, SolveOptions())
    assert got.served_fraction.tolist() == [1.0, 1.0, 0.0]


def test_a_row_gets_capacity_that_a_limited_row_of_its_class_cannot_use() -> None:
    """A maximum limits one row of the class to a third of its need. The other row gets its full
    need.
    """
    problem = replace(SHARED, upper=np.array([np.inf, 1.0, 0.0]), capacity=np.array([5.0, 0.0]))
    got = solve(problem, SolveOptions())
    assert got.counts.tolist() == [4, 1, 0]
    assert got.served_target.tolist() == [1.0, (1.0 / 3.0) * (1.0 - 1e-8)]
