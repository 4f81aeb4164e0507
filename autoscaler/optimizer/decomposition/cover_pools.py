"""Pools of near-cheapest real covers of a group, from which a small MIP chooses.

The search finds the price threshold that gives a pool of the requested size. It also finds the
exact cheapest cover.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.decomposition.cover_search import enumerate_covers
from autoscaler.optimizer.decomposition.groups import Group, pairs
from autoscaler.optimizer.decomposition.knapsack import UNITS

TRIES = 14
"""Number of price thresholds to try for one pool."""
KEPT = 16
"""Number of covers to keep at the cheapest price."""


@dataclass(frozen=True, slots=True)
class Covers:
    """Parts of covers of one group (p parts): cost in money (p,), use (p, k), and their (item,
    place) pairs, encoded as `id * R + place`, with offsets per part.

    `share` (p,): share of the demand that one part serves (1: a whole cover). `upper` (p,): largest
    number of times that a plan may take the part. `within`: the pool holds every cover whose price
    exceeds the cheapest by at most this; negative if it is incomplete even at the cheapest price.
    `tests`: number of item tests of the search.
    """

    cost: Floats
    use: Floats
    offsets: Ints
    pairs: Ints
    share: Floats
    upper: Floats
    within: float
    tests: int

    def __len__(self) -> int:
        return len(self.cost)


@dataclass(frozen=True, slots=True)
class Scene:
    """Common input of all searches at the same prices: money (F, R), weights (money with
    multipliers), capacities, and random hash marks (k + 1,), one per resource and one for base
    prices.
    """

    money: Floats
    weight: Floats
    capacity: Floats
    marks: Ints


def marks_for(resources: int, seed: int) -> Ints:
    """Random additive 64-bit marks. They are odd, so that multiplication by a power of two below
    2**64 never gives 0."""
    generator = np.random.default_rng(seed)
    return generator.integers(-(2**62), 2**62, resources + 1, dtype=np.int64) | 1


def covers_within(
    group: Group, scene: Scene, least: Floats, excess: float, most: int, tests: int
) -> Covers:
    """At most `most` covers whose price exceeds the knapsack's bound by at most `excess`."""
    codes, prices = group.near(scene.weight, least, excess)
    order = np.lexsort((codes, -group.throughput[codes // scene.money.shape[1]]))
    table = pairs(group, scene.money, codes[order])
    with np.errstate(over="ignore"):
        scaled = np.round(table.amount * 2.0**20).astype(np.int64)
        mark = np.zeros(len(codes), dtype=np.int64)
        row = np.repeat(np.arange(len(codes)), np.diff(table.indptr))
        np.add.at(mark, row, scaled * scene.marks[table.resource])
        base = group.base[table.code // scene.money.shape[1]]
        mark += np.round(base * 2.0**20).astype(np.int64) * scene.marks[-1]
    offsets, items, spent, complete = enumerate_covers(
        prices[order],
        table.throughput,
        table.indptr,
        table.resource,
        table.amount,
        scene.capacity,
        least,
        group.demand,
        float(least[UNITS]) + excess,
        most,
        tests,
        mark,
    )
    count = len(offsets) - 1
    use = np.zeros((count, len(scene.capacity)))
    owner = np.repeat(np.arange(count), np.diff(offsets))
    cost = np.bincount(owner, table.money[items], minlength=count).astype(np.float64)
    length = np.diff(table.indptr)[items]
    start = np.cumsum(length) - length
    at = np.repeat(table.indptr[items] - start, length) + np.arange(int(length.sum()))
    np.add.at(use, (np.repeat(owner, length), table.resource[at]), table.amount[at])
    places = scene.money.shape[1]
    item, place = np.divmod(table.code[items], places)
    return Covers(
        cost=cost,
        use=use,
        offsets=offsets,
        pairs=group.ids[item] * places + place,
        share=np.ones(count),
        upper=np.ones(count),
        within=excess if complete else -1.0,
        tests=spent,
    )


def items_within(
    group: Group, scene: Scene, least: Floats, excess: float, most: int | None = None
) -> Covers:
    """The (item, place) pairs of all covers within `excess` of the bound, each as a separate part.
    If there are more than `most`, the pairs with the least reduced cost remain.

    Covers that differ only in similar small templates have few distinct pairs, and the LP
    relaxation over these pairs is tight enough.
    """
    codes, prices = group.near(scene.weight, least, excess)
    if most is not None and len(codes) > most:
        reduced = prices + least[UNITS - group.units[codes // scene.money.shape[1]]]
        codes = np.sort(codes[np.argsort(reduced, kind="stable")[:most]])
    table = pairs(group, scene.money, codes)
    count = len(codes)
    use = np.zeros((count, len(scene.capacity)))
    row = np.repeat(np.arange(count), np.diff(table.indptr))
    np.add.at(use, (row, table.resource), table.amount)
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(use > 0, scene.capacity / use, np.inf).min(axis=1, initial=np.inf)
    share = np.minimum(1.0, table.throughput / group.demand)
    places = scene.money.shape[1]
    item, place = np.divmod(codes, places)
    return Covers(
        cost=table.money,
        use=use,
        offsets=np.arange(count + 1, dtype=np.int64),
        pairs=group.ids[item] * places + place,
        share=share,
        upper=np.minimum(np.floor(room + 1e-9), np.ceil(1.0 / share)),
        within=excess,
        tests=0,
    )


def pool(group: Group, scene: Scene, widest: float, most: int, tests: int) -> Covers:
    """The complete pool with the highest price threshold that has at most `most` covers; the
    threshold is at most `widest` above the bound.

    If more than `most` covers have the cheapest price (all interchangeable), the pool has the first
    of them. If this group alone nearly exhausts the capacities, the search finds few covers within
    `tests` item tests. The single pairs nearest to the bound are then added.
    """
    least, _ = group.cheapest(scene.weight)
    low, high, excess = 0.0, max(widest, 1e-9), max(widest, 1e-9)
    best: Covers | None = None
    part: Covers | None = None
    spent = 0
    for _ in range(TRIES):
        got = covers_within(group, scene, least, excess, most, max(1, (tests - spent) // 2))
        spent += got.tests
        if got.within >= 0:
            best, low = got, excess
            if excess >= widest or len(got) > 0.6 * most:
                break
        else:
            part, high = got, excess
        if high < 1e-6 * max(1.0, widest):
            break
        excess = (low + high) / 2 if low > 0 else high / 4
    chosen = best if best is not None and (len(best) or part is None) else part
    if chosen is None:  # impossible: the loop runs at least once and sets one of the two
        raise AssertionError("no pool was searched")
    chosen = replace(chosen, tests=spent)
    if chosen.within < widest and len(chosen) < most // 8:
        chosen = joined(chosen, items_within(group, scene, least, widest, most))
    return chosen


def joined(first: Covers, second: Covers) -> Covers:
    """The union of two pools. It is complete up to the price at which `first` is complete."""
    return Covers(
        cost=np.concatenate([first.cost, second.cost]),
        use=np.vstack([first.use, second.use]),
        offsets=np.concatenate([first.offsets, first.offsets[-1] + second.offsets[1:]]),
        pairs=np.concatenate([first.pairs, second.pairs]),
        share=np.concatenate([first.share, second.share]),
        upper=np.concatenate([first.upper, second.upper]),
        within=first.within,
        tests=first.tests,
    )


def cheapest(group: Group, scene: Scene, widest: float, tests: int) -> tuple[float, Covers]:
    """A proven bound on the price of the cheapest real cover, and the covers found at that price.

    The threshold rises from zero until a cover appears; a complete search below the threshold
    proves that there is none. If no cover is found within `widest` above the knapsack's bound, no
    covers are returned.
    """
    least, _ = group.cheapest(scene.weight)
    floor = float(least[UNITS])
    excess, proven, spent = 1e-9 * max(1.0, floor), 0.0, 0
    while True:
        got = covers_within(group, scene, least, excess, 4096, max(1, (tests - spent) // 2))
        spent += got.tests
        if len(got) and got.within >= 0:
            price = got.cost + got.use @ (scene.weight - scene.money).T.ravel()
            order = np.argsort(price, kind="stable")
            return float(price[order[0]]), replace(take(got, order[:KEPT]), tests=spent)
        if got.within < 0:
            some = np.arange(min(KEPT, len(got)))
            return floor + proven, replace(take(got, some), tests=spent)
        proven = excess
        if excess >= widest:
            return floor + proven, replace(got, tests=spent)
        excess = min(widest, max(4 * excess, 1e-5 * floor))


def take(covers: Covers, order: Ints) -> Covers:
    """The parts of `covers` in the order `order`."""
    length = np.diff(covers.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(covers.offsets[order] - offsets[:-1], length) + np.arange(offsets[-1])
    return replace(
        covers,
        cost=covers.cost[order],
        use=covers.use[order],
        offsets=offsets,
        pairs=covers.pairs[at],
        share=covers.share[order],
        upper=covers.upper[order],
    )
