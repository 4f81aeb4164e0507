"""Plans of whole-node templates: proofs, limits, determinism, and running fleets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.milp import minimise_cost
from autoscaler.optimizer.result import SolveOptions, Status, Step
from loadtests import template_problem as templates
from loadtests.allocation_account import account, changes
from loadtests.allocation_generate import generate
from loadtests.template_problem import (
    TemplatePlan,
    TemplateProblem,
    can_be_served,
    columns_of,
    solve_templates,
)


def made(seed: int, scarcity: float | None, most: int = 120) -> TemplateProblem:
    """A generated problem of 3 models, 2 regions and 12 configurations."""
    arrays = generate(3, 2, 12, seed, scarcity, most)
    return TemplateProblem(
        price_usd_per_h=arrays["price_usd_per_h"],
        available_nodes=arrays["available_nodes"],
        demand_req_per_s=arrays["demand_req_per_s"],
        nodes=tuple(arrays[f"nodes_{k}"] for k in range(6)),
        throughput_req_per_s=tuple(arrays[f"throughput_{k}"] for k in range(6)),
        start_penalty=float(arrays["K"]),
    )


def independent_bound(problem: TemplateProblem, mu: Floats, units: int = 150) -> float:
    """The Lagrangian bound at `mu`, from a simple dynamic program on a coarse grid, rounded up."""
    total = -float((mu * problem.available_nodes).sum())
    for k, demand in enumerate(problem.demand_req_per_s):
        nodes = problem.nodes[k].astype(float)
        money = nodes @ problem.price_usd_per_h.T * (1 + problem.start_penalty)
        price = money + nodes @ mu.T
        for r, available in enumerate(problem.available_nodes):
            price[(nodes > available).any(axis=1), r] = np.inf
        cheapest = price.min(axis=1)
        rate = np.minimum(1.0, problem.throughput_req_per_s[k] / demand)
        size = np.ceil(rate * units - 1e-9).astype(int)
        least = np.zeros(units + 1)
        for q in range(1, units + 1):
            least[q] = (least[np.maximum(0, q - size)] + cheapest).min()
        total += least[units]
    return total


def assert_sound(problem: TemplateProblem, plan: TemplatePlan) -> None:
    """Assert that the plan serves the demand and fits.

    The stated cost must equal an independent calculation.
    """
    cost, served, over = account(problem, plan.rows)
    assert not over
    assert cost == pytest.approx(plan.result.cost_usd_per_h)
    target = plan.result.served_target
    assert (served >= target * problem.demand_req_per_s * (1 - 1e-6)).all()
    assert 0.0 <= plan.result.lower_bound_usd_per_h <= cost * (1 + 1e-9)
    assert (target <= plan.result.served_fraction_bound.max() + 1e-9).any()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scarcity", [None, 1.25, 0.9])
def test_bound_and_cost_agree_with_a_plain_mip_and_with_the_multipliers(
    seed: int, scarcity: float | None
) -> None:
    """No bound exceeds the cost of a plan from another search, and the multipliers confirm the
    proof."""
    problem = made(seed, scarcity)
    plan = solve_templates(problem, SolveOptions(gap=0.01))
    assert_sound(problem, plan)
    got = plan.result
    assert got.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    assert got.gap <= 0.01
    flat, _ = columns_of(problem)
    plain = minimise_cost(flat, np.ones(6), nodes=10, seconds=np.inf, gap=0.05)
    assert plain.counts is not None
    plain_usd_per_h = float(plain.counts @ flat.cost_usd_per_h)
    assert got.lower_bound_usd_per_h <= plain_usd_per_h * (1 + 1e-7)
    assert plain.bound <= got.cost_usd_per_h * (1 + 1e-7)
    proven = independent_bound(problem, plan.node_price_usd_per_h)
    assert proven <= got.cost_usd_per_h * (1 + 1e-9)


def test_ample_capacity_is_solved_to_optimality() -> None:
    """No resource is scarce: groups do not compete, and the cheapest cover of each group is
    exact."""
    plan = solve_templates(made(5, None), SolveOptions(gap=0.0))
    assert plan.result.status is Status.OPTIMAL
    assert not plan.node_price_usd_per_h.any()


def test_the_same_problem_has_the_same_answer() -> None:
    problem = made(1, 0.9)
    first, second = (solve_templates(problem, SolveOptions(gap=1e-5)) for _ in range(2))
    assert first.rows.tolist() == second.rows.tolist()
    assert first.result.lower_bound_usd_per_h == second.result.lower_bound_usd_per_h
    assert first.node_price_usd_per_h.tolist() == second.node_price_usd_per_h.tolist()


def test_every_step_of_the_search_is_reported() -> None:
    """The bound rises, the cost falls, and no step builds more columns than exist."""
    steps: list[Step] = []
    problem = made(1, 0.9)
    plan = solve_templates(problem, SolveOptions(gap=1e-5, on_step=steps.append))
    assert [step.name for step in steps[:2]] == ["relaxation", "first plan"]
    bounds = [step.bound_usd_per_h for step in steps]
    costs = [step.cost_usd_per_h for step in steps]
    assert bounds == sorted(bounds) and costs == sorted(costs, reverse=True)
    assert costs[-1] == pytest.approx(plan.result.cost_usd_per_h)
    assert all(0 < step.columns <= problem.columns for step in steps)


def test_a_demand_beyond_all_nodes_cannot_be_served() -> None:
    problem = made(3, 0.4)
    assert not can_be_served(problem)
    assert can_be_served(replace(problem, demand_req_per_s=0.1 * problem.demand_req_per_s))


def test_with_too_many_columns_the_lowest_priced_ones_are_searched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan is a best effort over some of the columns, but its bounds hold for all columns."""
    problem = made(3, 0.4)
    all_ = solve_templates(problem, SolveOptions(time_limit_s=40.5, elapsed_s=looks()))
    monkeypatch.setattr(templates, "_MOST_COLUMNS", 300)
    some = solve_templates(problem, SolveOptions(gap=0.01))
    assert_sound(problem, some)
    assert some.result.status is Status.BEST_EFFORT
    assert some.result.lower_bound_usd_per_h == 0.0
    assert 0.5 * all_.result.served_target.min() < some.result.served_target.min()
    assert some.result.served_fraction_bound.min() >= all_.result.served_target.min()


def looks() -> Callable[[], float]:
    """A clock that advances by one second per reading."""
    now = [0.0]

    def elapsed_s() -> float:
        now[0] += 1.0
        return now[0]

    return elapsed_s


@pytest.mark.parametrize("looks_left", [2.5, 6.5, 15.5, 40.5, 120.5])
@pytest.mark.parametrize(("seed", "scarcity"), [(1, 0.9), (3, 0.4)])
def test_an_interrupted_search_returns_a_plan_and_its_bound(
    seed: int, scarcity: float, looks_left: float
) -> None:
    """The plan fits, serves the fraction that it states, and reports the interruption."""
    problem = made(seed, scarcity)
    options = SolveOptions(gap=1e-9, time_limit_s=looks_left, elapsed_s=looks())
    plan = solve_templates(problem, options)
    assert plan.result.status is not Status.FAILED
    assert_sound(problem, plan)
    if plan.result.gap > 1e-9:
        assert plan.result.limits_hit


def test_more_demand_with_a_running_fleet_keeps_most_of_it() -> None:
    """The start penalty applies only to new instances, and the bound includes the penalties."""
    problem = made(11, 1.6, most=150)
    before = solve_templates(problem, SolveOptions(gap=0.001)).rows
    more = replace(problem, demand_req_per_s=1.02 * problem.demand_req_per_s)
    plan = solve_templates(more, SolveOptions(gap=0.001), before)
    cost, served, over = account(more, plan.rows)
    assert not over and (served >= more.demand_req_per_s * (1 - 1e-6)).all()
    assert plan.result.gap <= 0.001
    assert plan.result.cost_usd_per_h < cost
    started, stopped = changes(plan.rows, before)
    assert started > 0 and stopped < 0.5 * int(before[:, 3].sum())


def test_an_unchanged_problem_keeps_the_running_fleet() -> None:
    problem = made(5, None)
    before = solve_templates(problem, SolveOptions())
    after = solve_templates(problem, SolveOptions(gap=0.001), before.rows)
    assert changes(after.rows, before.rows) == (0, 0)
    price_only = before.result.cost_usd_per_h / (1 + problem.start_penalty)
    assert after.result.cost_usd_per_h == pytest.approx(price_only)


@pytest.mark.parametrize(
    ("row", "word"),
    [
        ([6, 0, 0, 1], "group"),
        ([0, 2, 0, 1], "region"),
        ([0, 0, 10**6, 1], "template"),
        ([0, 0, 0, 0], "count"),
    ],
)
def test_an_impossible_running_fleet_is_refused_by_name(row: list[int], word: str) -> None:
    with pytest.raises(InvalidValue, match=word):
        solve_templates(made(5, None), SolveOptions(), np.array([row]))
