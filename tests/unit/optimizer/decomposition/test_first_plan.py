"""First plans, worked out by hand: a rounded mix, groups filled in turn, and
covers for one group.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Floats
from autoscaler.optimizer.decomposition.cover_pools import Covers, Scene, items_within, marks_for
from autoscaler.optimizer.decomposition.first_plan import rounded_mix
from autoscaler.optimizer.decomposition.groups import Decomposed, Group, units_of
from autoscaler.optimizer.decomposition.hard_groups import with_whole_covers
from autoscaler.optimizer.decomposition.work_limits import SearchLimits


def group(rates: list[float], prices: list[float], resource: list[int], demand: float) -> Group:
    """A group whose items each use one unit of the same resource, with these rates and prices."""
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
    """A scene with one place, whose resources cost nothing themselves."""
    return Decomposed(tuple(groups), np.zeros((len(capacity), 1)), np.array(capacity))


def covers(costs: list[float], use: list[list[float]], share: float = 1.0) -> Covers:
    """A pool in which each cover is one pair. Pairs are numbered from 0."""
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
"""Price of exceeding a capacity, by resource."""


def test_the_mix_is_rounded_to_its_own_covers() -> None:
    """Two groups compete for one cheap node. The mix gives it to the first group, which saves more
    with it.

    A choice group by group would give the node to the second group: both have as many covers, and
    the second is more expensive.
    """
    groups = [group([1.0], [1.0], [0], 1.0) for _ in range(2)]
    pools = [covers([1.0, 9.0], [[1, 0], [0, 1]]), covers([3.0, 4.0], [[1, 0], [0, 1]])]
    got = rounded_mix(problem(groups, [1.0, 2.0]), pools, PRICES, SearchLimits())
    assert got is not None
    assert [pairs.tolist() for pairs in got.pairs] == [[0], [1]]
    assert got.cost.sum() == 5.0
    assert not got.excess(problem(groups, [1.0, 2.0])).any()


def test_a_mix_of_halves_becomes_one_cover_each_with_the_excess_stated() -> None:
    """Two groups need two nodes each, but only three exist. The rounded mix exceeds the capacity by
    one node.
    """
    groups = [group([1.0], [1.0], [0], 1.0) for _ in range(2)]
    scene = problem(groups, [3.0, 0.0])
    got = rounded_mix(
        scene, [covers([1.0], [[2, 0]]), covers([1.0], [[2, 0]])], PRICES, SearchLimits()
    )
    assert got is not None
    assert got.excess(scene).tolist() == [1.0, 0.0]


def test_a_group_without_a_whole_cover_cannot_be_rounded() -> None:
    """Only fractions of covers exist for this group."""
    groups = [group([1.0], [1.0], [0], 1.0)]
    pools = [covers([1.0], [[1, 0]], share=0.5)]
    assert rounded_mix(problem(groups, [3.0, 0.0]), pools, PRICES, SearchLimits()) is None


def strained(capacity: list[float]) -> tuple[Group, Scene, Covers]:
    """A group that needs five instances of two kinds, and its pool of single pairs."""
    wants = group([1.0, 1.0], [1.0, 1.5], [0, 1], 5.0)
    money = np.zeros((2, 1))
    scene = Scene(money, money + 0.1, np.array(capacity), marks_for(2, 0))
    least: Floats = wants.cheapest(scene.weight)[0]
    return wants, scene, items_within(wants, scene, least, 5.0)


def test_whole_covers_are_made_for_a_group_that_nearly_exceeds_the_capacities() -> None:
    """Each kind has at most four instances. Every cover mixes the kinds, serves the demand of five,
    and fits.
    """
    wants, scene, parts = strained([4.0, 4.0])
    assert not (parts.share >= 1.0).any()
    got, work = with_whole_covers(wants, parts, scene, SearchLimits(), 0)
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
    assert got.cost[whole].min() == 5.5  # four cheap and one expensive


def test_no_cover_is_made_if_none_fits() -> None:
    """Four instances cannot serve a demand of five. The search tries once and leaves the pool
    unchanged.
    """
    wants, scene, parts = strained([2.0, 2.0])
    got, work = with_whole_covers(wants, parts, scene, SearchLimits(), 0)
    assert len(got) == len(parts)
    assert work.mips == 1


def test_no_cover_is_made_for_a_group_that_has_enough_or_without_time() -> None:
    """If the group has enough whole covers, or no time is left, no program is solved."""
    wants, scene, parts = strained([4.0, 4.0])
    enough = covers([6.0, 7.0], [[4, 1], [3, 2]])
    got, work = with_whole_covers(wants, enough, scene, SearchLimits(), 0)
    assert got is enough
    assert work.mips == 0
    late = SearchLimits(time_limit_s=5.0, elapsed_s=lambda: 4.5)
    got, work = with_whole_covers(wants, parts, scene, late, 0)
    assert got is parts
    assert work.mips == 0
