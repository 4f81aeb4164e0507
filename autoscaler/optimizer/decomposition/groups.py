"""The decomposed form of an allocation: one covering knapsack per demand row, with shared
resources. This module holds the compressed item tables that the kernels read, computes prices of
items, and removes pairs that do not fit or that no good plan uses. An item may be placed in several
places; its (item, place) pairs are priced but never stored. Resources are numbered `place *
features + feature`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.decomposition.knapsack import (
    UNITS,
    cheapest_by_units,
    cover,
    pair_prices,
    trace,
)


@dataclass(frozen=True, slots=True)
class Group:
    """Items of one demand row; `knapsack.py` describes the layout. `ids` (n,): the caller's numbers
    of the items."""

    indptr: Ints
    feature: Ints
    amount: Floats
    base: Floats
    throughput: Floats
    units: Ints
    allowed: Bools
    ids: Ints
    demand: float

    def prices(self, weight: Floats) -> Floats:
        """Price of every item in every place, (n, R)."""
        priced: Floats = pair_prices(self.indptr, self.feature, self.amount, self.base, weight)
        return priced

    def cheapest(self, weight: Floats) -> tuple[Floats, Ints]:
        """The least price of covering 0..UNITS units, and the codes of the pairs in the cheapest
        cover of all units."""
        best, code = cheapest_by_units(self.prices(weight), self.units, self.allowed, UNITS)
        least, first = cover(best, UNITS)
        return least, trace(first, code, UNITS)

    def near(self, weight: Floats, least: Floats, slack: float) -> tuple[Ints, Floats]:
        """Codes and prices of the pairs that occur in any cover whose price is within `slack` of
        the cheapest.

        The best cover that contains pair j costs c_j + least[UNITS - u_j], because items may
        repeat. If this exceeds the cheapest price by more than `slack`, no plan within the slack
        uses the pair (reduced-cost fixing).
        """
        price = self.prices(weight)
        most = slack + least[UNITS] - least[UNITS - self.units]
        close = (price <= most[:, None]) & self.allowed & (self.units > 0)[:, None]
        codes = np.flatnonzero(close)
        return codes, price.ravel()[codes]


@dataclass(frozen=True, slots=True)
class Decomposed:
    """Groups, the money per unit of a feature in a place (F, R), and the capacities (R * F,)."""

    groups: tuple[Group, ...]
    money: Floats
    capacity: Floats

    def weight(self, mu: Floats) -> Floats:
        """The sum of money and multipliers per unit of a feature in a place, as an array (F, R) in
        the memory order of the kernels."""
        features, places = self.money.shape
        return np.ascontiguousarray(self.money + mu.reshape(places, features).T)


def units_of(throughput: Floats, demand: float) -> Ints:
    """Throughput in units of the grid (UNITS units are the whole `demand`), rounded up so that the
    bound stays valid."""
    share = np.minimum(throughput, demand) / demand
    return np.ceil(share * UNITS - 1e-9).astype(np.int64)


def restrict(group: Group, allowed: Bools) -> Group:
    """`group` with only the pairs in `allowed` (n, R); items without any allowed pair are
    dropped."""
    keep = np.flatnonzero(allowed.any(axis=1))
    length = np.diff(group.indptr)[keep]
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(group.indptr[keep] - indptr[:-1], length) + np.arange(indptr[-1])
    return Group(
        indptr=indptr,
        feature=group.feature[at],
        amount=group.amount[at],
        base=group.base[keep],
        throughput=group.throughput[keep],
        units=group.units[keep],
        allowed=np.ascontiguousarray(allowed[keep]),
        ids=group.ids[keep],
        demand=group.demand,
    )


def fitting(group: Group, capacity: Floats) -> Group:
    """`group` with only the pairs that fit at least once into `capacity` (R * F,)."""
    n, places = group.allowed.shape
    features = len(capacity) // places
    row = np.repeat(np.arange(n), np.diff(group.indptr))
    allowed = group.allowed.copy()
    for place in range(places):
        room = capacity[place * features : (place + 1) * features] + 1e-9
        over = group.amount > room[group.feature]
        allowed[row[over], place] = False
    return restrict(group, allowed)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Single (item, place) pairs and their use of resources in compressed rows; code = item * R +
    place."""

    code: Ints
    money: Floats
    throughput: Floats
    indptr: Ints
    resource: Ints
    amount: Floats


def pairs(group: Group, money: Floats, codes: Ints) -> Pairs:
    """The pairs `codes` of a group, with their use of resources and their price in money."""
    places = group.allowed.shape[1]
    features = money.shape[0]
    item, place = np.divmod(codes, places)
    length = np.diff(group.indptr)[item]
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(group.indptr[item] - indptr[:-1], length) + np.arange(indptr[-1])
    feature = group.feature[at].astype(np.int64)
    where = np.repeat(place, length)
    row = np.repeat(np.arange(len(codes)), length)
    price = np.bincount(row, group.amount[at] * money[feature, where], minlength=len(codes))
    return Pairs(
        code=codes,
        money=group.base[item] + price,
        throughput=group.throughput[item],
        indptr=indptr,
        resource=where * features + feature,
        amount=group.amount[at],
    )


def near_pairs_only(problem: Decomposed, weight: Floats, slack: float) -> Decomposed:
    """`problem` with only the pairs that a plan within `slack` of the bound at `weight` may contain
    (reduced-cost fixing).

    The slack is slightly increased to allow for rounding.
    """
    slack = slack * (1 + 1e-9) + 1e-9
    groups = []
    for group in problem.groups:
        least, _ = group.cheapest(weight)
        codes, _ = group.near(weight, least, slack)
        allowed = np.zeros_like(group.allowed)
        allowed.ravel()[codes] = True
        groups.append(restrict(group, allowed))
    return replace(problem, groups=tuple(groups))
