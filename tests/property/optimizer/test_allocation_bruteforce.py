"""Every small allocation problem, compared with a brute force over all allocations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import SolveOptions, Status
from autoscaler.optimizer.solve import solve
from loadtests.allocation_account import account
from loadtests.template_problem import TemplateProblem, solve_templates

EXACT = SolveOptions(gap=1e-9)
MOST = 3  # largest count of a column in the brute force


def columns(
    entries: list[tuple[float, float, dict[int, float], dict[int, float]]],
    demand: list[float],
    capacity: list[float],
    priority: list[int] | None = None,
) -> AllocationProblem:
    """A problem with one column per entry (cost, upper, serves, uses)."""
    serve = [sorted(e[2].items()) for e in entries]
    use = [sorted(e[3].items()) for e in entries]
    return AllocationProblem(
        cost_usd_per_h=np.array([e[0] for e in entries], dtype=np.float64),
        upper=np.array([e[1] for e in entries], dtype=np.float64),
        serve_indptr=np.cumsum([0] + [len(s) for s in serve]),
        serve_row=np.array([r for s in serve for r, _ in s], dtype=np.int64),
        serve_rate=np.array([v for s in serve for _, v in s], dtype=np.float64),
        use_indptr=np.cumsum([0] + [len(u) for u in use]),
        use_resource=np.array([r for u in use for r, _ in u], dtype=np.int64),
        use_amount=np.array([v for u in use for _, v in u], dtype=np.float64),
        demand_req_per_s=np.array(demand, dtype=np.float64),
        priority=np.array(priority or [0] * len(demand), dtype=np.int64),
        capacity=np.array(capacity, dtype=np.float64),
    )


def every_allocation(problem: AllocationProblem) -> list[tuple[float, float]]:
    """(cost, smallest served fraction, at most 1) of every allocation that fits."""
    n = problem.columns
    ranges = [range(int(min(u, MOST)) + 1) for u in problem.upper]
    counts = np.array(list(itertools.product(*ranges)), dtype=np.float64)
    serve = np.zeros((n, len(problem.demand_req_per_s)))
    use = np.zeros((n, len(problem.capacity)))
    for j in range(n):
        for e in range(problem.serve_indptr[j], problem.serve_indptr[j + 1]):
            serve[j, problem.serve_row[e]] += problem.serve_rate[e]
        for e in range(problem.use_indptr[j], problem.use_indptr[j + 1]):
            use[j, problem.use_resource[e]] += problem.use_amount[e]
    fits = (counts @ use <= problem.capacity + 1e-9).all(axis=1)
    served = (counts @ serve / problem.demand_req_per_s).min(axis=1)
    cost = counts @ problem.cost_usd_per_h
    return [(c, min(1.0, s)) for c, s in zip(cost[fits], served[fits], strict=True)]


def expect(problem: AllocationProblem) -> tuple[float, float]:
    """The largest of the smallest served fractions, and the least cost at that value."""
    tried = every_allocation(problem)
    fraction = max(s for _, s in tried)
    if fraction >= 1.0 - 1e-9:
        fraction = 1.0
    return fraction, min(c for c, s in tried if s >= fraction - 1e-7)


quarter = st.integers(1, 40).map(lambda x: x / 4)


@st.composite
def fleets(draw: st.DrawFn) -> AllocationProblem:
    """Two models on sliced nodes of two pools. Columns keep, start and switch instances, and may
    rent nodes.
    """
    demand = [draw(quarter), draw(quarter)]
    # Resources: GPUs of pools 0 and 1, then for each running kind its kept and switched instances.
    capacity = [float(draw(st.integers(0, 4))), float(draw(st.integers(0, 2)))]
    entries: list[tuple[float, float, dict[int, float], dict[int, float]]] = []
    for row in (0, 1):
        price, rate = draw(quarter), draw(quarter)
        gpus = float(draw(st.sampled_from([1, 2])))
        running = draw(st.integers(0, 2))
        tie = len(capacity)
        capacity.append(float(running))
        entries.append((price, MOST, {row: rate}, {0: gpus, tie: 1.0}))  # keep
        entries.append((1.1 * price, MOST, {row: rate}, {0: gpus}))  # start
        other = draw(quarter)
        entries.append((1.05 * price, MOST, {1 - row: other}, {0: gpus, tie: 1.0}))  # switch
    if draw(st.booleans()):
        entries.append((draw(quarter), 2.0, {}, {0: -4.0}))  # a rented node of four slices
    entries.append((draw(quarter), MOST, {draw(st.integers(0, 1)): draw(quarter)}, {1: 1.0}))
    return columns(entries, demand, capacity)


@settings(max_examples=80, deadline=None)
@given(fleets())
def test_transitions_slices_and_rented_nodes_match_brute_force(problem: AllocationProblem) -> None:
    """Cost and smallest served fraction equal those of the best of all allocations.

    If the rates require more than MOST of a column, the test checks nothing.
    """
    bounded = AllocationProblem(
        **{name: getattr(problem, name) for name in problem.__slots__}
        | {"upper": np.minimum(problem.upper, MOST)}
    )
    fraction, cost = expect(bounded)
    got = solve(bounded, EXACT)
    if fraction <= 0:
        assert got.status is Status.BEST_EFFORT
        assert got.served_target.min() == 0.0  # Other rows still get their share.
        return
    # A fraction counts as reached within the proven precision of the search (0.1%).
    assert float(got.served_fraction.min()) >= fraction * (1 - 1.1e-3)
    assert float(got.served_fraction_bound.min()) >= fraction - 1e-7
    if fraction == 1.0:
        assert got.status is Status.OPTIMAL
        assert got.cost_usd_per_h == pytest.approx(cost, rel=1e-6)
        assert got.lower_bound_usd_per_h <= cost * (1 + 1e-9)
    else:
        assert got.status is Status.BEST_EFFORT


@st.composite
def instances(draw: st.DrawFn) -> TemplateProblem:
    """Problems with two groups, two regions, two configurations, and up to three templates each."""
    nodes, rates = [], []
    for _ in range(2):
        count = draw(st.integers(1, 3))
        rows = draw(
            st.lists(
                st.tuples(st.integers(0, 2), st.integers(0, 2)).filter(lambda x: sum(x) > 0),
                min_size=count,
                max_size=count,
            )
        )
        nodes.append(np.array(rows, dtype=np.uint8))
        rates.append(np.array([draw(quarter) for _ in rows], dtype=np.float64))
    return TemplateProblem(
        price_usd_per_h=np.array([[draw(quarter) for _ in range(2)] for _ in range(2)]),
        available_nodes=np.array([[draw(st.integers(0, 3)) for _ in range(2)] for _ in range(2)]),
        demand_req_per_s=np.array([draw(quarter), draw(quarter)]),
        nodes=tuple(nodes),
        throughput_req_per_s=tuple(rates),
        start_penalty=draw(st.sampled_from([0.0, 0.1])),
    )


def as_columns(instance: TemplateProblem) -> AllocationProblem:
    """The same problem, with one column for every template and region."""
    regions, configs = instance.price_usd_per_h.shape
    entries = []
    for k, nodes in enumerate(instance.nodes):
        for i, row in enumerate(nodes.astype(float)):
            for r in range(regions):
                cost = float(row @ instance.price_usd_per_h[r]) * (1 + instance.start_penalty)
                use = {r * configs + c: v for c, v in enumerate(row.tolist()) if v}
                rate = float(instance.throughput_req_per_s[k][i])
                entries.append((cost, float(MOST), {k: rate}, use))
    capacity = [float(x) for x in instance.available_nodes.ravel()]
    return columns(entries, instance.demand_req_per_s.tolist(), capacity)


@settings(max_examples=60, deadline=None)
@given(instances())
def test_template_instances_match_brute_force(instance: TemplateProblem) -> None:
    """In the paper's format the availability is at most 3, so no count above 3 is possible."""
    flat = as_columns(instance)
    used = [j for j in range(flat.columns) if _fits_alone(flat, j)]
    fraction, cost = _best(flat, used)
    plan = solve_templates(instance, EXACT)
    got = plan.result
    if fraction <= 0:
        assert got.status is Status.BEST_EFFORT
        assert got.served_target.min() == 0.0
        return
    assert float(got.served_fraction.min()) >= fraction * (1 - 1.1e-3)
    assert float(got.served_fraction_bound.min()) >= fraction - 1e-7
    if fraction == 1.0:
        assert got.status is Status.OPTIMAL
        assert got.cost_usd_per_h == pytest.approx(cost, rel=1e-6)
        recounted, served, over = account(instance, plan.rows)
        assert not over
        assert recounted == pytest.approx(got.cost_usd_per_h)
        assert (served >= instance.demand_req_per_s * (1 - 1e-8)).all()


def _fits_alone(problem: AllocationProblem, j: int) -> bool:
    at = slice(problem.use_indptr[j], problem.use_indptr[j + 1])
    return bool((problem.use_amount[at] <= problem.capacity[problem.use_resource[at]]).all())


def _best(problem: AllocationProblem, used: list[int]) -> tuple[float, float]:
    """The largest smallest served fraction and its least cost.

    A depth-first search over all allocations that fit.
    """
    best = (0.0, 0.0)
    demand = problem.demand_req_per_s

    def visit(position: int, left: np.ndarray, served: np.ndarray, cost: float) -> None:
        nonlocal best
        if position == len(used):
            fraction = min(1.0, float((served / demand).min()))
            fraction = 1.0 if fraction >= 1.0 - 1e-9 else fraction
            if (fraction, -cost) > (best[0], -best[1]):
                best = (fraction, cost)
            return
        j = used[position]
        uses = slice(problem.use_indptr[j], problem.use_indptr[j + 1])
        serves = slice(problem.serve_indptr[j], problem.serve_indptr[j + 1])
        while (left >= -1e-9).all():
            visit(position + 1, left, served, cost)
            if served[problem.serve_row[serves]] >= demand[problem.serve_row[serves]]:
                break  # Another instance serves no demand.
            left, served = left.copy(), served.copy()
            left[problem.use_resource[uses]] -= problem.use_amount[uses]
            served[problem.serve_row[serves]] += problem.serve_rate[serves]
            cost += float(problem.cost_usd_per_h[j])

    visit(0, problem.capacity.copy(), np.zeros(len(demand)), 0.0)
    return best


def test_a_warm_start_finds_the_same_optimum() -> None:
    """The search starts from the optimal plan and finds the same cost."""
    problem = columns(
        [(1.0, 3.0, {0: 1.0}, {0: 1.0}), (1.5, 3.0, {0: 2.0}, {0: 1.0})], [3.0], [4.0]
    )
    cold = solve(problem, EXACT)
    warm = solve(problem, EXACT, cold.counts)
    assert warm.cost_usd_per_h == cold.cost_usd_per_h == 2.5
