"""The allocation solver beyond optimality: priority classes, rows of other kinds, and limits."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer import best_effort
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.milp import ExactResult, minimise_cost, relaxed
from autoscaler.optimizer.problem import AllocationProblem, Follows
from autoscaler.optimizer.result import Limits, SolveOptions, Status
from autoscaler.optimizer.round_and_fill import filled
from autoscaler.optimizer.solve import solve
from loadtests.allocation_generate import generate
from loadtests.template_problem import TemplateProblem, columns_of
from tests.property.optimizer.test_allocation_bruteforce import columns


def two_classes(capacity: float) -> AllocationProblem:
    """Row 0 is in class 0 and row 1 in class 1. Each instance takes one unit of
    a common capacity.
    """
    return AllocationProblem(
        cost_usd_per_h=np.array([1.0, 1.0]),
        upper=np.full(2, np.inf),
        serve_indptr=np.array([0, 1, 2]),
        serve_row=np.array([0, 1]),
        serve_rate=np.array([1.0, 1.0]),
        use_indptr=np.array([0, 1, 2]),
        use_resource=np.array([0, 0]),
        use_amount=np.array([1.0, 1.0]),
        demand_req_per_s=np.array([4.0, 4.0]),
        priority=np.array([0, 1]),
        capacity=np.array([capacity]),
    )


def test_the_more_important_class_is_served_first() -> None:
    """There are six units for a demand of eight. Class 0 gets all of its four, class 1 the
    remaining two.
    """
    got = solve(two_classes(6.0), SolveOptions())
    assert got.status is Status.BEST_EFFORT
    assert got.counts.tolist() == [4, 2]
    assert got.served_fraction.tolist() == [1.0, 0.5]
    assert got.served_fraction_bound == pytest.approx([1.0, 0.5])


def test_a_row_that_depends_on_a_short_row_needs_its_share_of_the_served_part() -> None:
    """Row 1 requires half of the capacity of row 0 in expensive units. Row 0 gets six of ten units,
    so row 1 needs three, not five.
    """
    dear, cheap = (3.0, np.inf, {0: 1.0, 1: 1.0}, {0: 1.0}), (1.0, np.inf, {0: 1.0}, {0: 1.0})
    alone = columns([dear, cheap], [10.0, 5.0], [6.0], [0, 1])
    assert solve(alone, SolveOptions()).counts.tolist() == [5, 1]
    problem = replace(alone, follows=(Follows(1, 0, 0.5, 0.0),))
    got = solve(problem, SolveOptions())
    assert got.status is Status.BEST_EFFORT
    assert got.counts.tolist() == [3, 3]
    assert got.served_fraction == pytest.approx([0.6, 1.0])
    assert (
        solve(replace(problem, follows=(Follows(1, 0, 0.5, -3.5),)), SolveOptions()).counts[0] == 0
    )  # 3.5 units already exist.
    enough = replace(problem, capacity=np.array([10.0]))
    assert solve(enough, SolveOptions()).counts.tolist() == [5, 5]
    with pytest.raises(InvalidValue, match="earlier class"):
        replace(problem, follows=(Follows(0, 1, 0.5, 0.0),))


def test_enough_capacity_leaves_no_row_short_and_none_binding() -> None:
    """There are ten units, and the demand is eight."""
    got = solve(two_classes(10.0), SolveOptions())
    assert got.status is Status.OPTIMAL
    assert got.counts.tolist() == [4, 4]


def test_a_budget_and_a_minimum_are_ordinary_rows() -> None:
    """The budget is a resource whose use is the price, so the cheap column is chosen. The row of
    the minimum requires two instances.
    """
    problem = AllocationProblem(
        cost_usd_per_h=np.array([3.0, 1.0]),
        upper=np.full(2, 5.0),
        serve_indptr=np.array([0, 2, 4]),
        serve_row=np.array([0, 1, 0, 1]),
        serve_rate=np.array([10.0, 1.0, 4.0, 1.0]),  # Row 1 counts instances: the minimum.
        use_indptr=np.array([0, 1, 2]),
        use_resource=np.array([0, 0]),
        use_amount=np.array([3.0, 1.0]),
        demand_req_per_s=np.array([8.0, 2.0]),
        priority=np.array([0, 1]),
        capacity=np.array([2.5]),
    )
    got = solve(problem, SolveOptions())
    assert got.counts.tolist() == [0, 2]
    assert got.cost_usd_per_h == 2.0


def made(seed: int, scarcity: float) -> TemplateProblem:
    """A generated problem of 3 models, 2 regions and 12 configurations."""
    arrays = generate(3, 2, 12, seed, scarcity, 120)
    return TemplateProblem(
        price_usd_per_h=arrays["price_usd_per_h"],
        available_nodes=arrays["available_nodes"],
        demand_req_per_s=arrays["demand_req_per_s"],
        nodes=tuple(arrays[f"nodes_{k}"] for k in range(6)),
        throughput_req_per_s=tuple(arrays[f"throughput_{k}"] for k in range(6)),
        start_penalty=float(arrays["K"]),
    )


def test_a_valid_plan_and_its_bound_are_returned_when_time_runs_out() -> None:
    """The clock advances by one second per reading."""
    problem, _ = columns_of(made(2, 0.4))
    looks = itertools.count(1.0)
    options = SolveOptions(gap=1e-9, time_limit_s=14.5, elapsed_s=lambda: next(looks))
    got = solve(problem, options)
    assert got.status is Status.BEST_EFFORT
    assert (problem.used(got.counts) <= problem.capacity + 1e-9).all()
    assert got.counts.any()
    assert got.served_fraction.min() <= got.served_fraction_bound.min() + 1e-9
    assert got.limits_hit


def test_without_time_the_running_fleet_or_else_a_filled_plan_is_returned() -> None:
    problem = two_classes(6.0)
    over = SolveOptions(time_limit_s=1.0, elapsed_s=lambda: 2.0)
    filled = solve(problem, over)
    assert filled.status is Status.BEST_EFFORT
    assert filled.counts.tolist() == [4, 2]  # The first class is filled before the second.
    assert filled.limits_hit == ("wall_clock",)
    runs = solve(problem, SolveOptions()).counts
    got = solve(problem, over, runs)
    assert got.status is Status.BEST_EFFORT and got.counts.tolist() == runs.tolist()
    assert got.limits_hit == ("wall_clock",)


def test_a_small_part_next_to_a_large_one_gets_enough_time() -> None:
    """By its share of the 2,000 columns it would get one second, which one reading of the clock
    takes. The column that serves most for its cost leaves no room for the remaining demand.
    """
    rng = random.Random(1)
    small = [(1.0, 5.0, {0: 5.0}, {0: 4.0}), (1.0, 5.0, {0: 3.0}, {0: 3.0})]
    large = [
        (rng.uniform(1.0, 5.0), np.inf, {1 + at % 9: rng.uniform(1.0, 5.0)}, {1: 1.0})
        for at in range(2000)
    ]
    problem = columns([*small, *large], [6.0] + [50.0] * 9, [6.0, 1000.0])
    looks = itertools.count(1.0)
    options = SolveOptions(gap=0.2, time_limit_s=1000.0, elapsed_s=lambda: next(looks))
    got = solve(problem, options)
    assert got.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    assert got.counts[:2].tolist() == [0, 2]


def test_a_row_that_no_column_serves_takes_no_time() -> None:
    problem = columns([(1.0, 5.0, {0: 1.0}, {0: 1.0})], [3.0, 1.0], [5.0])
    got = solve(problem, SolveOptions())
    assert got.counts.tolist() == [3]
    assert got.served_target.tolist() == got.served_fraction_bound.tolist() == [1.0, 0.0]
    assert got.limits_hit == ()


@pytest.mark.parametrize("start", [None, [1, 0, 0], [1, 0, 3]])
def test_a_class_is_fully_served_if_that_is_possible(
    start: list[int] | None,
) -> None:
    """9.995 of 10 counts as fully served within the precision of a fraction. But capacity for the
    missing 0.005 exists.
    """
    kept, little, other = (
        (1.0, 1.0, {0: 9.995}, {0: 1.0}),
        (1.0, 5.0, {0: 0.1}, {0: 1.0}),
        (1.0, 5.0, {1: 1.0}, {0: 1.0}),
    )
    problem = columns([kept, little, other], [10.0, 10.0], [4.0], [0, 1])
    got = solve(problem, SolveOptions(), None if start is None else np.array(start))
    assert got.counts.tolist() == [1, 1, 2]
    assert got.served_target[0] == 1.0


def test_a_search_states_whether_time_or_work_stopped_it() -> None:
    """The problem is to halve four sums of 30 numbers at once. It takes far longer than 0.2 s."""
    rng = random.Random(5)
    sums = [[float(rng.randint(1, 99)) for _ in range(30)] for _ in range(4)]
    half = [float(sum(row) // 2) for row in sums]
    taken = [{row: sums[row][at] for row in range(4)} for at in range(30)]
    problem = columns([(1.0, 1.0, each, each) for each in taken], half, half)
    for nodes, seconds, limit in ((10**7, 0.2, "wall_clock"), (1, np.inf, "mip_nodes")):
        got = minimise_cost(problem, np.ones(4), nodes, seconds, 1e-6)
        assert got.counts is None and got.limit == limit


def test_the_relaxation_is_solved_if_the_search_ends_without_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A search that proves its plan optimal needs no relaxation."""
    solved = []

    def counted(*args: object) -> object:
        solved.append(args)
        return relaxed(*args)  # type: ignore[arg-type]

    monkeypatch.setattr("autoscaler.optimizer.covers.COVER_COLUMNS", np.inf)
    monkeypatch.setattr("autoscaler.optimizer.method.relaxed", counted)
    monkeypatch.setattr("autoscaler.optimizer.selection.relaxed", counted)
    assert solve(two_classes(9.0), SolveOptions()).status is Status.OPTIMAL
    assert not solved
    problem, _ = columns_of(made(2, 0.9))
    cut = solve(problem, SolveOptions(gap=0.0, mip_nodes=1))
    assert "mip_nodes" in cut.limits_hit and solved
    least = relaxed(problem, cut.served_target, np.inf)
    assert least is not None
    assert least.value - 1e-6 <= cut.lower_bound_usd_per_h < cut.cost_usd_per_h


def test_the_best_serving_columns_stay_if_some_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The node costs most, but no other column works without it. The expensive column serves most
    per GPU of the node.
    """
    monkeypatch.setattr(best_effort, "MIP_COLUMNS", 2)
    cheap = [(0.1, 9.0, {0: 1.0}, {0: 1.0})] * 5
    node, dear = (10.0, 1.0, {}, {0: -8.0}), (5.0, 9.0, {0: 3.0}, {0: 1.0})
    problem = columns([*cheap, node, dear], [30.0], [0.0])
    served = best_effort.most_served(problem, SolveOptions())
    assert served.counts.tolist() == [0, 0, 0, 0, 0, 1, 8]
    assert served.target[0] == pytest.approx(24.0 / 30.0)


def test_the_optimum_under_a_tight_budget_is_proven_with_little_work() -> None:
    """Twelve rows share a budget for 60% of the demand. Column sizes differ, so
    rounding matters.
    """
    rng = random.Random(3)
    sizes = [(row, size, rng.uniform(0.8, 1.2)) for row in range(12) for size in (1, 2, 4, 8)]
    offers = [(size * dear, 99.0, {row: size * 0.9}, {0: size * dear}) for row, size, dear in sizes]
    demand = [rng.uniform(3.0, 20.0) for _ in range(12)]
    problem = columns(offers, demand, [0.6 * sum(demand) / 0.9])
    got = solve(problem, SolveOptions(mip_nodes=200))
    assert got.served_fraction.min() >= 0.995 * got.served_fraction_bound.min()


def tight_budget(rows: int, each: int) -> AllocationProblem:
    """A problem of `rows` rows, each with `each` columns of four sizes.

    The budget pays for about 60% of the demand.
    """
    rng = np.random.default_rng(1)
    size = rng.choice([1.0, 2.0, 4.0, 8.0], rows * each)
    price, rate = size * rng.uniform(0.7, 1.3, rows * each), size * rng.uniform(0.7, 1.1, len(size))
    demand = rng.uniform(3.0, 40.0, rows)
    at = np.arange(rows * each + 1)
    return AllocationProblem(
        cost_usd_per_h=price,
        upper=np.full(rows * each, 50.0),
        serve_indptr=at,
        serve_row=np.repeat(np.arange(rows), each),
        serve_rate=rate,
        use_indptr=at,
        use_resource=np.zeros(rows * each, dtype=np.int64),
        use_amount=price,
        demand_req_per_s=demand,
        priority=np.zeros(rows, dtype=np.int64),
        capacity=np.array([0.5 * float(demand.sum())]),
    )


def test_a_hundred_rows_get_a_plan_if_every_search_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each search may take longer than the previous one."""
    given: list[float] = []

    def struck(_: AllocationProblem, __: Floats, limits: Limits, share: float) -> ExactResult:
        given.append(share)
        return ExactResult(None, 0.0, "wall_clock", 0)

    monkeypatch.setattr(best_effort, "any_plan", struck)
    problem = tight_budget(100, 100)
    looks = itertools.count(1.0)
    options = SolveOptions(time_limit_s=40.0, elapsed_s=lambda: next(looks), mip_nodes=5)
    got = best_effort.most_served(problem, options)
    assert (problem.used(got.counts) <= problem.capacity).all()
    served = np.minimum(1.0, problem.served_req_per_s(got.counts) / problem.demand_req_per_s)
    assert served.min() >= 0.8 * got.bound.min()
    assert served @ problem.demand_req_per_s >= 0.9 * got.bound.min() * sum(
        problem.demand_req_per_s
    )
    assert "wall_clock" in got.limits
    first = given[:4]
    assert first == sorted(first) and first[0] > 0.0 and first[-1] > first[0]


def test_a_fraction_whose_search_was_too_short_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, short = best_effort.any_plan, itertools.count()

    def hasty(
        problem: AllocationProblem, target: Floats, limits: Limits, share: float
    ) -> ExactResult:
        if next(short) < 3:
            return ExactResult(None, 0.0, "mip_nodes", 0)
        return real(problem, target, limits, share)

    monkeypatch.setattr(best_effort, "any_plan", hasty)
    got = best_effort.most_served(tight_budget(6, 10), SolveOptions())
    assert got.target.min() >= (1.0 - 2e-3) * got.bound.min()


def test_a_class_loses_no_capacity_to_a_less_important_one() -> None:
    """A rounded plan for all rows would serve class 1 too, but would take capacity from the
    smallest row of class 0.
    """
    problem = tight_budget(12, 10)
    got = best_effort.most_served(
        replace(problem, priority=np.array([0] * 10 + [1, 2])), SolveOptions()
    )
    assert got.target[:10].min() >= (1.0 - 2e-3) * got.bound[:10].min()


def test_after_the_time_limit_each_remaining_class_takes_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There are at most twice as many fill steps as classes."""
    calls = itertools.count()

    def counted(problem: AllocationProblem, counts: Ints, rows: Ints, target: Floats) -> Ints:
        next(calls)
        return filled(problem, counts, rows, target)

    monkeypatch.setattr(best_effort, "filled", counted)
    problem = tight_budget(60, 60)
    problem = replace(problem, priority=np.arange(60) // 4)
    over = SolveOptions(time_limit_s=1.0, elapsed_s=lambda: 2.0)
    got = best_effort.most_served(problem, over)
    assert next(calls) <= 2 * 15
    served = np.minimum(1.0, problem.served_req_per_s(got.counts) / problem.demand_req_per_s)
    assert got.target == pytest.approx(served, abs=1e-7)
    assert (served < 1.0).any() and served[:4].min() >= served[-4:].max()
