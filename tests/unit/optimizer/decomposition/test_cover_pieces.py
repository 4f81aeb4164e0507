"""The parts of the decomposition, each compared with results that were worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.optimizer.decomposition.cover_milp import choose
from autoscaler.optimizer.decomposition.cover_pools import (
    Covers,
    Scene,
    cheapest,
    covers_within,
    items_within,
    marks_for,
)
from autoscaler.optimizer.decomposition.dual_ascent import ascend
from autoscaler.optimizer.decomposition.groups import Decomposed, Group, units_of
from autoscaler.optimizer.decomposition.knapsack import UNITS


def group(rates: list[float], prices: list[float], demand: float) -> Group:
    """A group whose items each use one unit of the same resource, with these rates and prices."""
    n = len(rates)
    rate = np.array(rates)
    return Group(
        indptr=np.arange(n + 1, dtype=np.int64),
        feature=np.zeros(n, dtype=np.int32),
        amount=np.ones(n),
        base=np.array(prices, dtype=np.float64),
        throughput=rate,
        units=units_of(rate, demand),
        allowed=np.ones((n, 1), dtype=np.bool_),
        ids=np.arange(n, dtype=np.int64),
        demand=demand,
    )


def scene(capacity: float) -> Scene:
    """A scene with one resource, which costs nothing itself."""
    return Scene(np.zeros((1, 1)), np.zeros((1, 1)), np.array([capacity]), marks_for(1, 0))


def whole(cost: float, use: float) -> Covers:
    """A pool that contains a single cover."""
    one = np.ones(1)
    return Covers(
        np.array([cost]), np.array([[use]]), np.array([0, 1]), np.array([0]), one, one, 0.0, 0
    )


def test_a_cover_is_the_cheapest_way_to_meet_demand() -> None:
    """The demand is 10. Two items of rate 5 at price 3 cost less than one of rate 10 at 7, and less
    than three of rate 4 at 2.5.
    """
    least, codes = group([5, 10, 4], [3, 7, 2.5], 10.0).cheapest(np.zeros((1, 1)))
    assert least[UNITS] == 6.0
    assert codes.tolist() == [0, 0]


def test_a_cover_that_meets_demand_only_by_rounding_is_rejected() -> None:
    """On the grid two items of 4.9999 reach a demand of 10, but not in exact numbers."""
    items = group([4.9999, 10.0], [3.0, 7.0], 10.0)
    least, _ = items.cheapest(np.zeros((1, 1)))
    assert least[UNITS] == 6.0
    price, covers = cheapest(items, scene(9.0), 30.0, 10_000)
    assert price == 7.0
    assert covers.pairs[:1].tolist() == [1]


def test_covers_respect_the_capacity_and_are_complete() -> None:
    """The demand is 3 and the items serve 1 or 2. The capacity allows two instances. The search
    returns every cover of at most two.
    """
    items = group([1.0, 2.0], [1.0, 2.0], 3.0)
    least, _ = items.cheapest(np.zeros((1, 1)))
    found = covers_within(items, scene(2.0), least, 5.0, 100, 10_000)
    assert found.within == 5.0
    assert sorted(found.cost.tolist()) == [3.0, 4.0]


def test_an_item_is_chosen_as_often_as_it_fits() -> None:
    """An item that serves a quarter of the demand is chosen four times if the capacity allows."""
    items = group([2.5], [1.0], 10.0)
    least, _ = items.cheapest(np.zeros((1, 1)))
    parts = items_within(items, scene(9.0), least, 1.0)
    assert parts.share.tolist() == [0.25]
    got = choose([parts], np.array([9.0]), 10, np.inf, 1e-9)
    assert got is not None
    assert got.counts[0].tolist() == [4]
    assert got.cost == got.bound == 4.0
    assert choose([parts], np.array([3.0]), 10, np.inf, 1e-9) is None


def test_exceeding_a_capacity_costs_its_penalty() -> None:
    """The result states the excess."""
    got = choose(
        [whole(2.0, 3.0)],
        np.array([1.0]),
        10,
        np.inf,
        1e-9,
        penalty=np.array([10.0]),
    )
    assert got is not None
    assert got.excess.tolist() == [2.0]


@pytest.mark.parametrize("given", [False, True])
def test_a_known_choice_is_kept_if_no_time_is_left(given: bool) -> None:
    pools = [
        Covers(
            cost=np.array([1.0, 3.0]),
            use=np.array([[2.0], [1.0]]),
            offsets=np.arange(3),
            pairs=np.arange(2),
            share=np.ones(2),
            upper=np.ones(2),
            within=0.0,
            tests=0,
        )
        for _ in range(2)
    ]
    got = choose(pools, np.array([3.0]), 10, 0.0, 1e-9, last_fits=given)
    assert (got is not None) == given
    if got is not None:
        assert [c.tolist() for c in got.counts] == [[0, 1], [0, 1]]
        assert got.cost == 6.0 and got.bound <= 4.0
    best = choose(pools, np.array([3.0]), 10, np.inf, 1e-9, last_fits=given)
    assert best is not None and best.cost == 4.0


def test_the_bound_of_two_groups_on_one_node_is_the_cost_of_the_best_mix() -> None:
    """Both groups prefer the only cheap node (1 USD/h; the alternative costs 3). Together they cost
    at least 4 USD/h.
    """
    rows = [group([1.0, 1.0], [1.0, 3.0], 1.0) for _ in range(2)]
    # The expensive item does not use the scarce resource.
    rows = [
        Group(
            indptr=np.array([0, 1, 1]),
            feature=g.feature[:1],
            amount=g.amount[:1],
            base=g.base,
            throughput=g.throughput,
            units=g.units,
            allowed=g.allowed,
            ids=g.ids,
            demand=g.demand,
        )
        for g in rows
    ]
    problem = Decomposed(tuple(rows), np.zeros((1, 1)), np.array([1.0]))
    got = ascend(problem, np.zeros(1), 50)
    assert got is not None
    assert got.bound == pytest.approx(4.0)
    assert got.mu[0] == pytest.approx(2.0)
