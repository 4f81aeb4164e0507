"""Behaviour of the search by decomposition beyond the optimum: proofs, limits, determinism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoscaler.optimizer.arrays import Floats
from autoscaler.optimizer.milp import minimise_cost
from autoscaler.optimizer.result import Status
from loadtests.allocation_generate import generate
from loadtests.coral.column_form import columns_of
from loadtests.coral.instance import TemplateInstance, lower
from loadtests.coral.limits import SearchOptions
from loadtests.coral.placements import Placements, account, solve_instance
from loadtests.coral.warm import check_running, solve_running


def made(seed: int, scarcity: float | None, most: int = 300) -> TemplateInstance:
    """A generated instance of 3 models, 2 regions and 12 configurations."""
    arrays = generate(3, 2, 12, seed, scarcity, most)
    return TemplateInstance(
        price_usd_per_h=arrays["price_usd_per_h"],
        available_nodes=arrays["available_nodes"],
        demand_req_per_s=arrays["demand_req_per_s"],
        nodes=tuple(arrays[f"nodes_{k}"] for k in range(6)),
        throughput_req_per_s=tuple(arrays[f"throughput_{k}"] for k in range(6)),
        start_penalty=float(arrays["K"]),
    )


def independent_bound(instance: TemplateInstance, mu: Floats, units: int = 600) -> float:
    """The Lagrangian bound at `mu`, by a plain dynamic program on a coarse grid, rounded up."""
    total = -float((mu * instance.available_nodes).sum())
    for k, demand in enumerate(instance.demand_req_per_s):
        nodes = instance.nodes[k].astype(float)
        money = nodes @ instance.price_usd_per_h.T * (1 + instance.start_penalty)
        price = money + nodes @ mu.T
        for r, available in enumerate(instance.available_nodes):
            price[(nodes > available).any(axis=1), r] = np.inf
        cheapest = price.min(axis=1)
        rate = np.minimum(1.0, instance.throughput_req_per_s[k] / demand)
        size = np.ceil(rate * units - 1e-9).astype(int)
        least = np.zeros(units + 1)
        for q in range(1, units + 1):
            least[q] = (least[np.maximum(0, q - size)] + cheapest).min()
        total += least[units]
    return total


def assert_sound(instance: TemplateInstance, got: Placements) -> None:
    """The plan serves and fits, and costs what it says, by an account of its own."""
    cost, served, over = account(instance, got.rows)
    assert not over
    assert cost == pytest.approx(got.cost_usd_per_h)
    assert (served >= got.served_target * instance.demand_req_per_s * (1 - 1e-6)).all()
    assert got.lower_bound_usd_per_h <= cost * (1 + 1e-9)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scarcity", [None, 1.25, 0.9])
def test_bound_and_cost_agree_with_a_plain_mip_and_with_the_multipliers(
    seed: int, scarcity: float | None
) -> None:
    """No bound lies above a plan, whoever found it; what the multipliers prove holds as well."""
    instance = made(seed, scarcity, most=120)
    got = solve_instance(instance, SearchOptions(gap=0.01, mip_columns=6000))
    assert_sound(instance, got)
    flat, _, _ = columns_of(lower(instance))
    if got.status is Status.BEST_EFFORT:
        assert got.served_fraction_bound - got.served_target <= 0.005
        return
    assert got.status in (Status.OPTIMAL, Status.WITHIN_GAP)
    assert got.gap <= 0.01
    plain = minimise_cost(flat, np.ones(6), nodes=300, seconds=np.inf, gap=0.01)
    assert plain.counts is not None
    plain_usd_per_h = float(plain.counts @ flat.cost_usd_per_h)
    assert got.lower_bound_usd_per_h <= plain_usd_per_h * (1 + 1e-7)
    assert plain.bound <= got.cost_usd_per_h * (1 + 1e-7)
    proven = independent_bound(instance, got.mu_usd_per_h)
    assert proven <= got.cost_usd_per_h * (1 + 1e-9)


def test_ample_capacity_is_solved_to_optimality() -> None:
    """Nothing scarce: groups do not meet, and each one's cheapest cover is exact."""
    got = solve_instance(made(5, None), SearchOptions(gap=0.0))
    assert got.status is Status.OPTIMAL
    assert got.gap <= 1e-9
    assert not got.mu_usd_per_h.any()


def test_the_same_question_has_the_same_answer() -> None:
    """Twice the same instance and seed: the same rows, bound and multipliers, bit for bit."""
    instance = made(1, 0.9, most=120)
    options = SearchOptions(gap=1e-5, rounds=8, mip_columns=1500)
    first, second = solve_instance(instance, options), solve_instance(instance, options)
    assert first.rows.tolist() == second.rows.tolist()
    assert first.lower_bound_usd_per_h == second.lower_bound_usd_per_h
    assert first.mu_usd_per_h.tolist() == second.mu_usd_per_h.tolist()
    assert first.work == second.work


def test_a_wall_clock_limit_that_strikes_is_told() -> None:
    """A clock that has run out: the first plan comes back and says that the clock ended it."""
    instance = made(3, 0.9)
    full = solve_instance(instance, SearchOptions(gap=0.0, mip_columns=500, rounds=3))
    assert full.limits_hit
    late = SearchOptions(gap=0.0, time_limit_s=1.0, elapsed_s=lambda: 0.9)
    got = solve_instance(instance, late)
    if got.gap > 0:
        assert "wall_clock" in got.limits_hit
        assert got.status is Status.LIMIT
    assert_sound(instance, got)


def test_more_demand_next_to_a_running_fleet_keeps_most_of_it() -> None:
    """The transition's cost charges K on what is new only, and its bound lies below it."""
    instance = made(11, 1.6, most=150)
    before = solve_instance(instance, SearchOptions(gap=0.01))
    more = replace(instance, demand_req_per_s=instance.demand_req_per_s * 1.02)
    check_running(more, before.rows)
    after = solve_running(more, before.rows, SearchOptions(gap=0.01), before.mu_usd_per_h)
    assert_all = account(more, after.done.rows)
    assert not assert_all[2]
    assert (assert_all[1] >= more.demand_req_per_s * (1 - 1e-6)).all()
    assert after.done.gap <= 0.01
    assert after.done.cost_usd_per_h <= assert_all[0] + 1e-9
    kept = after.running - after.stopped
    assert kept == int(after.done.rows[:, 3].sum()) - after.started
    assert after.fraction_replaced < 0.5


def test_nothing_changes_when_nothing_has_changed() -> None:
    """The optimum runs already: keeping all of it is the cheapest transition."""
    instance = made(5, None)
    before = solve_instance(instance, SearchOptions())
    after = solve_running(instance, before.rows, SearchOptions(gap=0.001))
    assert (after.started, after.stopped) == (0, 0)
    price_only = before.cost_usd_per_h / (1 + instance.start_penalty)
    assert after.done.cost_usd_per_h == pytest.approx(price_only)
