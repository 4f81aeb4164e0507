"""What comes out when time runs out: always a plan with a bound, and the word that it was cut.

The clocks are made up: they advance by one at each look, so a limit strikes at a known step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from autoscaler.optimizer.result import Status
from loadtests.allocation_generate import generate
from loadtests.coral.best_effort import largest_fraction
from loadtests.coral.dual import ascend
from loadtests.coral.instance import TemplateInstance, lower
from loadtests.coral.limits import SearchOptions
from loadtests.coral.placements import account, solve_instance


def made(seed: int, scarcity: float) -> TemplateInstance:
    """A generated instance of 3 models, 2 regions and 12 configurations."""
    arrays = generate(3, 2, 12, seed, scarcity, 120)
    return TemplateInstance(
        price_usd_per_h=arrays["price_usd_per_h"],
        available_nodes=arrays["available_nodes"],
        demand_req_per_s=arrays["demand_req_per_s"],
        nodes=tuple(arrays[f"nodes_{k}"] for k in range(6)),
        throughput_req_per_s=tuple(arrays[f"throughput_{k}"] for k in range(6)),
        start_penalty=float(arrays["K"]),
    )


def looks() -> Callable[[], float]:
    """A clock that advances by one at each look."""
    now = [0.0]

    def elapsed_s() -> float:
        now[0] += 1.0
        return now[0]

    return elapsed_s


def within(looks_left: float) -> SearchOptions:
    """Limits of a clock that may be looked at so often."""
    return SearchOptions(gap=1e-9, time_limit_s=looks_left, elapsed_s=looks())


def test_an_ascent_that_is_cut_proves_what_it_has() -> None:
    """After three looks it ends, says so, and its bound is valid: below the full one's."""
    problem = lower(made(1, 0.9))
    zero = np.zeros(len(problem.capacity))
    full = ascend(problem, zero, 400)
    cut = ascend(problem, zero, 400, options=within(3.5))
    assert full is not None
    assert cut is not None
    assert not full.cut
    assert cut.cut
    assert cut.rounds < full.rounds
    assert cut.bound < full.bound


def test_an_ascent_with_time_ends_as_without_a_clock() -> None:
    """A limit that does not strike changes nothing."""
    problem = lower(made(1, 0.9))
    zero = np.zeros(len(problem.capacity))
    full, timed = ascend(problem, zero, 400), ascend(problem, zero, 400, options=within(1e6))
    assert full is not None
    assert timed is not None
    assert not timed.cut
    assert (timed.bound, timed.rounds) == (full.bound, full.rounds)


@pytest.mark.parametrize("looks_left", [0.5, 2.5, 6.5, 15.5, 40.5, 120.5])
@pytest.mark.parametrize(("seed", "scarcity"), [(1, 0.9), (3, 0.4)])
def test_an_answer_with_its_bound_comes_whenever_time_runs_out(
    seed: int, scarcity: float, looks_left: float
) -> None:
    """The plan fits and serves what it says; the bounds hold; a cut search says that it was."""
    instance = made(seed, scarcity)
    got = solve_instance(instance, within(looks_left))
    assert got.status is not Status.FAILED
    cost, served, over = account(instance, got.rows)
    assert not over
    assert cost == pytest.approx(got.cost_usd_per_h)
    assert got.served_target > 0.0
    assert (served >= got.served_target * instance.demand_req_per_s * (1 - 1e-6)).all()
    assert 0.0 <= got.lower_bound_usd_per_h <= cost * (1 + 1e-9)
    assert got.served_target <= got.served_fraction_bound <= 1.0
    if got.gap > 1e-9 or got.served_target < got.served_fraction_bound - 0.01:
        assert "wall_clock" in got.limits_hit


def test_a_bound_of_the_fraction_that_was_not_searched_says_so() -> None:
    """No time to prove that demand is out of reach: the bound is 1, and the clock is named."""
    problem = lower(made(3, 0.4))
    proven = largest_fraction(problem, SearchOptions())
    assert proven.bound < 0.9
    late = replace(SearchOptions(), time_limit_s=1.0, elapsed_s=lambda: 1.0)
    hurried = largest_fraction(problem, late)
    assert hurried.bound >= proven.bound
    assert "wall_clock" in hurried.limits
    assert 0.0 < hurried.served <= proven.bound
