"""Plans that cannot serve all demand: budget, priorities and maximums."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Policy
from autoscaler.domain.combo import Combo
from autoscaler.domain.reason import about, codes_of
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.strategies.shoal import ShoalStrategy
from tests.unit.planning.planning_clusters import (
    TWO_POOLS,
    A,
    B,
    combo,
)
from tests.unit.planning.test_plan_brute_force import build, declared
from topics.reason_codes import ReasonCode


def test_a_budget_limits_the_cost_and_unserved_demand_is_stated() -> None:
    one = combo("m:a", 1.0, 1.0, A)
    policy = Policy(budget_usd_per_h=3.0)
    made = ShoalStrategy().solve(
        build((declared("m"),), {"m": (one,)}, {"m": 4.0}, {}, TWO_POOLS, policy)
    )
    assert made.status is PlanStatus.BEST_EFFORT
    assert made.cost_usd_per_h == 3.0
    assert made.shortfall_req_per_s == {"m": pytest.approx(1.6)}
    assert made.served_fraction_bound == pytest.approx(0.6, abs=1e-3)
    assert ReasonCode.BUDGET in codes_of(made.binding)


def test_a_model_that_no_combo_serves_takes_nothing_from_others() -> None:
    one = combo("m:a", 1.0, 1.0, A)
    services = (declared("m"), declared("n"))
    made = ShoalStrategy().solve(
        build(services, {"m": (one,), "n": ()}, {"m": 4.0, "n": 1.0}, {}, TWO_POOLS)
    )
    assert made.status is PlanStatus.BEST_EFFORT
    assert made.counts() == {"m:a": 5}
    assert made.shortfall_req_per_s == {"n": 1.0}
    assert about(made.notes, "n")


def test_capacity_that_a_short_model_cannot_use_goes_to_the_next() -> None:
    """Only m can use pool b, which is too small. n gets its full need from pool a."""
    pools = (TWO_POOLS[0], replace(TWO_POOLS[1], max_nodes=1))
    candidates = {"m": (combo("m:b", 1.0, 4.0, B),), "n": (combo("n:a", 1.0, 1.0, A),)}
    services = (declared("m"), declared("n"))
    made = ShoalStrategy().solve(build(services, candidates, {"m": 8.0, "n": 8.0}, {}, pools))
    assert made.counts() == {"m:b": 1, "n:a": 10}
    assert made.shortfall_req_per_s == {"m": pytest.approx(7.2)}
    assert made.served_fraction_bound == pytest.approx(0.1, abs=1e-3)


def test_priority_is_served_first_under_shortage() -> None:
    pools = (replace(TWO_POOLS[0], max_nodes=5),)
    candidates = {"m": (combo("m:a", 1.0, 1.0, A),), "n": (combo("n:a", 1.0, 1.0, A),)}
    services = (declared("m"), declared("n", priority=1))
    made = ShoalStrategy().solve(build(services, candidates, {"m": 4.0, "n": 3.2}, {}, pools))
    assert made.counts() == {"m:a": 1, "n:a": 4}


def test_capacity_of_a_higher_priority_gives_no_bound_for_all_models() -> None:
    """Model m takes all five nodes. Three nodes for m and two for n would serve at least 40% of
    both.
    """
    pools = (replace(TWO_POOLS[0], max_nodes=5),)
    candidates = {"m": (combo("m:a", 1.0, 1.0, A),), "n": (combo("n:a", 1.0, 1.0, A),)}
    services = (declared("m", priority=1), declared("n"))
    made = ShoalStrategy().solve(build(services, candidates, {"m": 4.0, "n": 4.0}, {}, pools))
    assert made.counts() == {"m:a": 5}
    assert made.served_fraction_bound >= 0.4


def test_nodes_of_one_model_do_not_count_for_another() -> None:
    """m needs five nodes and n needs five. m has four, and one is free. If n gets the free node, n
    serves 20%."""
    pools = (replace(TWO_POOLS[0], max_nodes=5),)
    ours, others = combo("m:a", 1.0, 1.0, A), combo("n:a", 1.0, 1.0, A)
    services = (declared("m"), declared("n"))
    candidates = {"m": (ours,), "n": (others,)}
    problem = build(services, candidates, {"m": 4.0, "n": 4.0}, {"m:a": 4}, pools)
    made = ShoalStrategy().solve(replace(problem, additions_only=True))
    assert made.status is PlanStatus.BEST_EFFORT
    assert 0.2 <= made.served_fraction_bound < 1.0


def test_maximums_hold_and_unserved_demand_is_stated() -> None:
    one: Combo = combo("m:a", 1.0, 1.0, A)
    made = ShoalStrategy().solve(
        build((declared("m", max_instances=3),), {"m": (one,)}, {"m": 4.0}, {}, TWO_POOLS)
    )
    assert made.counts() == {"m:a": 3}
    assert made.shortfall_req_per_s == {"m": pytest.approx(1.6)}
    assert codes_of(made.binding) == (ReasonCode.CEILING,)
