"""First plans by hand: a mix that is rounded, groups filled in turn, covers made for one group."""

from __future__ import annotations

import numpy as np
import pytest

from autoscaler.optimizer.arrays import Floats
from loadtests.coral.dual import subproblem
from loadtests.coral.first_plan import rounded_mix
from loadtests.coral.greedy_fill import filled
from loadtests.coral.groups import Decomposed, Group, units_of
from loadtests.coral.limits import SearchOptions
from loadtests.coral.pool import Covers, Scene, items_within, marks_for
from loadtests.coral.strained import with_whole_covers


def group(rates: list[float], prices: list[float], resource: list[int], demand: float) -> Group:
    """Items that each use one unit of one resource, with prices of their own."""
    n = len(rates)
    rate = np.array(rates)
    return Group(
        indptr=np.arange(n + 1, dtype=np.int64),
        feature=np.array(resource, dtype=np.int32),
        amount=np.ones(n),
        base=np.array(prices, dtype=np.float64),
        throughput=rate,
        units=units_of(rate, demand),
        allowed=np.ones((n, 1), dtype=np.bool_),
        ids=np.arange(n, dtype=np.int64),
        demand=demand,
    )


def problem(groups: list[Group], capacity: list[float]) -> Decomposed:
    """One place; the resources themselves cost nothing."""
    return Decomposed(tuple(groups), np.zeros((len(capacity), 1)), np.array(capacity))


def covers(costs: list[float], use: list[list[float]], share: float = 1.0) -> Covers:
    """A pool whose covers are one pair each, numbered from 0."""
    n = len(costs)
    return Covers(
        cost=np.array(costs),
        use=np.array(use, dtype=np.float64),
        offsets=np.arange(n + 1, dtype=np.int64),
        pairs=np.arange(n, dtype=np.int64),
        share=np.full(n, share),
        upper=np.ones(n),
        within=0.0,
        tests=0,
    )


PRICES = np.array([100.0, 100.0])
"""Of exceeding a capacity, by resource."""


def test_the_mix_is_rounded_to_the_covers_that_it_takes() -> None:
    """One cheap node for two groups; it is worth more to the first, and the mix knows it.

    Group by group the second would not leave it: both have as many covers, and it is the dearer.
    """
    groups = [group([1.0], [1.0], [0], 1.0) for _ in range(2)]
    pools = [covers([1.0, 9.0], [[1, 0], [0, 1]]), covers([3.0, 4.0], [[1, 0], [0, 1]])]
    got = rounded_mix(problem(groups, [1.0, 2.0]), pools, PRICES)
    assert got is not None
    assert [pairs.tolist() for pairs in got.pairs] == [[0], [1]]
    assert got.cost.sum() == 5.0
    assert not got.excess(problem(groups, [1.0, 2.0])).any()


def test_a_mix_of_halves_becomes_one_cover_each_and_what_exceeds_stays_visible() -> None:
    """Three nodes, two groups of two nodes each: no whole choice fits; one exceeds by one."""
    groups = [group([1.0], [1.0], [0], 1.0) for _ in range(2)]
    scene = problem(groups, [3.0, 0.0])
    got = rounded_mix(scene, [covers([1.0], [[2, 0]]), covers([1.0], [[2, 0]])], PRICES)
    assert got is not None
    assert got.excess(scene).tolist() == [1.0, 0.0]


def test_no_mix_comes_from_parts_of_covers() -> None:
    """A group with no whole cover cannot be rounded."""
    groups = [group([1.0], [1.0], [0], 1.0)]
    pools = [covers([1.0], [[1, 0]], share=0.5)]
    assert rounded_mix(problem(groups, [3.0, 0.0]), pools, PRICES) is None


def test_the_group_that_is_served_least_takes_next() -> None:
    """Three nodes, two groups that want two each: both get one before either gets two."""
    both = [group([1.0], [1.0], [0], 2.0) for _ in range(2)]
    share, plan = filled(problem(both, [3.0]), np.zeros(1))
    assert share == 0.5
    assert plan is not None
    assert plan.use.sum() == 3.0
    assert sorted(len(pairs) for pairs in plan.pairs) == [1, 2]


@pytest.mark.parametrize(("mu", "item"), [([0.0, 0.0], 0), ([3.0, 0.0], 1)])
def test_what_serves_most_per_price_is_taken_first(mu: list[float], item: int) -> None:
    """1 USD/h against 2, until the first one's resource is worth 3 more."""
    one = [group([1.0, 1.0], [1.0, 2.0], [0, 1], 1.0)]
    share, plan = filled(problem(one, [1.0, 1.0]), np.array(mu))
    assert share == 1.0
    assert plan is not None
    assert plan.pairs[0].tolist() == [item]
    assert plan.cost.tolist() == [float(item + 1)]


def test_a_fill_takes_the_next_best_when_the_best_runs_out() -> None:
    """One node of the cheap kind, then the dear one; together they serve all."""
    one = [group([1.0, 1.0], [1.0, 2.0], [0, 1], 2.0)]
    share, plan = filled(problem(one, [1.0, 5.0]), np.zeros(2))
    assert share == 1.0
    assert plan is not None
    assert plan.pairs[0].tolist() == [0, 1]
    assert plan.cost.tolist() == [3.0]


def strained(capacity: list[float]) -> tuple[Group, Scene, Covers]:
    """A group that wants five instances of two kinds, and its single pairs only."""
    wants = group([1.0, 1.0], [1.0, 1.5], [0, 1], 5.0)
    money = np.zeros((2, 1))
    scene = Scene(money, money + 0.1, np.array(capacity), marks_for(2, 0))
    least: Floats = subproblem(wants, scene.weight)[0]
    return wants, scene, items_within(wants, scene, least, 5.0)


def test_whole_covers_are_made_for_a_group_that_strains_the_capacities() -> None:
    """At most four of each kind: every cover mixes them, serves all five and fits."""
    wants, scene, parts = strained([4.0, 4.0])
    assert not (parts.share >= 1.0).any()
    got, work = with_whole_covers(wants, parts, scene, SearchOptions(), 0)
    whole = np.flatnonzero(got.share >= 1.0)
    assert len(whole) >= 1
    assert work.mips >= 1
    for at in whole:
        pairs = got.pairs[got.offsets[at] : got.offsets[at + 1]]
        assert wants.throughput[pairs].sum() >= wants.demand
        assert (np.bincount(pairs, minlength=2) == got.use[at]).all()
        assert (got.use[at] <= scene.capacity).all()
        assert got.cost[at] == wants.base[pairs].sum()
    assert len({got.use[at].tobytes() for at in whole}) == len(whole)
    assert got.cost[whole].min() == 5.5  # four of the cheap kind and one of the dear


def test_no_cover_is_made_where_none_fits() -> None:
    """Four instances in all cannot serve five: one try tells, and the pool stays as it is."""
    wants, scene, parts = strained([2.0, 2.0])
    got, work = with_whole_covers(wants, parts, scene, SearchOptions(), 0)
    assert len(got) == len(parts)
    assert work.mips == 1


def test_no_cover_is_made_for_a_group_that_has_enough_or_without_time() -> None:
    """Whole covers enough, or the clock run out: nothing is spent."""
    wants, scene, parts = strained([4.0, 4.0])
    enough = covers([6.0, 7.0], [[4, 1], [3, 2]])
    got, work = with_whole_covers(wants, enough, scene, SearchOptions(), 0)
    assert got is enough
    assert work.mips == 0
    late = SearchOptions(time_limit_s=5.0, elapsed_s=lambda: 4.5)
    got, work = with_whole_covers(wants, parts, scene, late, 0)
    assert got is parts
    assert work.mips == 0
