"""A second solver agrees with every small allocation problem, and catches a result that is wrong in
a way that no check of the result alone can see.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status
from autoscaler.optimizer.solve import solve
from streams.solver.plan_verification import Quantity, Refutation, Verdict, verify_allocation
from tests.property.optimizer.test_allocation_bruteforce import (
    as_columns,
    columns,
    fleets,
    instances,
)

EXACT = SolveOptions(gap=1e-9)
SECONDS = 20.0


@settings(max_examples=30, deadline=None)
@given(fleets() | instances().map(as_columns))
def test_the_second_solver_confirms_each_result(problem: AllocationProblem) -> None:
    """Cost and bound and, if the demand cannot be met, the served fraction."""
    result = solve(problem, EXACT)
    found = verify_allocation(problem, result, SECONDS)
    assert {one.verdict for one in found} == {Verdict.AGREES}, found
    fractions = [one for one in found if one.quantity is Quantity.SERVED_FRACTION]
    assert bool(fractions) is (result.status is Status.BEST_EFFORT)


@settings(max_examples=15, deadline=None)
@given(fleets(), st.floats(1.001, 3.0))
def test_a_plan_that_costs_more_than_its_claimed_bound_allows_is_caught(
    problem: AllocationProblem, times: float
) -> None:
    """The tampered solver claims that the best plan costs `times` as much. The counts fit."""
    dearer = replace(problem, cost_usd_per_h=problem.cost_usd_per_h * times)
    wrong = solve(dearer, EXACT)
    got = verify_allocation(problem, wrong, SECONDS)[-1]
    if wrong.cost_usd_per_h == 0.0:
        assert got.verdict is Verdict.AGREES
        return
    assert got.refutation in (Refutation.BELOW_BOUND, Refutation.COUNT_DIFFERS)
    assert got.second.objective == pytest.approx(wrong.cost_usd_per_h / times, rel=1e-6)


PROBLEM = columns([(3.0, 9.0, {0: 1.0}, {0: 1.0}), (5.0, 9.0, {0: 2.0}, {0: 2.0})], [3.0], [6.0])
"""The best plan has one column of each kind and costs 8."""


def tampered(result: AllocationResult, counts: list[int], cost: float, bound: float) -> Refutation:
    wrong = replace(
        result,
        counts=np.array(counts, dtype=np.int64),
        cost_usd_per_h=cost,
        lower_bound_usd_per_h=bound,
    )
    got = verify_allocation(PROBLEM, wrong, SECONDS)[-1]
    assert got.verdict is Verdict.DISAGREES
    assert got.refutation is not None
    return got.refutation


def test_each_kind_of_wrong_result_is_named() -> None:
    """The plan, its bound, its counts and its sum can each be wrong on their own."""
    right = solve(PROBLEM, EXACT)
    assert (right.counts.tolist(), right.cost_usd_per_h) == ([1, 1], 8.0)
    assert tampered(right, [3, 0], 9.0, 9.0) is Refutation.BELOW_BOUND
    assert tampered(right, [1, 1], 7.0, 7.0) is Refutation.COUNT_DIFFERS
    assert tampered(right, [0, 1], 5.0, 5.0) is Refutation.ROW_BROKEN
    assert tampered(right, [3, 2], 19.0, 8.0) is Refutation.ROW_BROKEN


def test_an_impossible_or_too_small_served_fraction_is_caught() -> None:
    """At most 3 of 4 req/s fit. A claim of 2 and one of a plan for all are both wrong."""
    problem = columns([(1.0, 9.0, {0: 1.0}, {0: 1.0})], [4.0], [3.0])
    right = solve(problem, EXACT)
    assert right.served_fraction.tolist() == [0.75]
    less = replace(
        right,
        counts=np.array([2]),
        cost_usd_per_h=2.0,
        lower_bound_usd_per_h=2.0,
        served_fraction=np.array([0.5]),
        served_target=np.array([0.5]),
    )
    fraction, cost = verify_allocation(problem, less, SECONDS)
    assert fraction.refutation is Refutation.NOT_BEST
    assert cost.verdict is Verdict.AGREES
    bounded = replace(less, served_fraction_bound=np.array([0.5]))
    assert verify_allocation(problem, bounded, SECONDS)[0].refutation is Refutation.BELOW_BOUND
    everything = replace(right, served_target=np.ones(1), counts=np.array([4]), cost_usd_per_h=4.0)
    (whole,) = verify_allocation(problem, everything, SECONDS)
    assert whole.refutation is Refutation.ROW_BROKEN
    assert whole.second.outcome == "infeasible"


def test_a_failed_solve_claims_nothing() -> None:
    failed = replace(solve(PROBLEM, EXACT), status=Status.FAILED)
    assert verify_allocation(PROBLEM, failed, SECONDS) == []
