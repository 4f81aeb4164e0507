"""The covering knapsack of one group, i.e. the Lagrangian subproblem, as compiled kernels. They
compute the prices of pairs under capacity multipliers, the cheapest pair for each number of
throughput units, the dynamic program over units, and the trace of its solution. Throughput is
rounded UP to units, so the program returns a lower bound on the price of any real cover.

Layout of a group: n items in compressed rows (`indptr`, `feature`, `amount`), each of which may be
placed in R places. `weight[f, r]` is the price of one unit of feature f in place r (its money plus
its multiplier). `base[i]` is a price of item i in every place. `allowed[i, r]` tells whether the
pair is still in the problem. The code of a pair (item, place) is `item * R + place`.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.performance.numba_decorators import compiled

UNITS = 8000
"""Units into which the knapsack divides the demand. Rounding adds at most 1/8000 of the demand for
each item of a cover."""


@compiled
def pair_prices(
    indptr: Ints, feature: Ints, amount: Floats, base: Floats, weight: Floats
) -> Floats:
    """Price of every item in every place, (n, R)."""
    places = weight.shape[1]
    price = np.empty((base.shape[0], places))
    for i in range(base.shape[0]):
        for r in range(places):
            price[i, r] = base[i]
        for e in range(indptr[i], indptr[i + 1]):
            for r in range(places):
                price[i, r] += amount[e] * weight[feature[e], r]
    return price


@compiled
def cheapest_by_units(price: Floats, units: Ints, allowed: Bools, grid: int) -> tuple[Floats, Ints]:
    """The cheapest pair for each number of units: prices (grid + 1,) and codes (grid + 1,)."""
    n, places = price.shape
    best = np.full(grid + 1, np.inf)
    code = np.full(grid + 1, -1)
    for i in range(n):
        u = units[i]
        if u > 0:
            for r in range(places):
                if price[i, r] < best[u] and allowed[i, r]:
                    best[u] = price[i, r]
                    code[u] = i * places + r
    return best, code


@compiled
def cover(best: Floats, grid: int) -> tuple[Floats, Ints]:
    """For 0..grid units: the least price of covering them, and the item (by its units) that the
    cheapest cover takes first.

    Items that cost more than a combination of smaller items are left out of the inner loop, because
    only a few dozen of the thousands of items in real libraries remain.
    """
    least = np.zeros(grid + 1)
    first = np.zeros(grid + 1, dtype=np.int64)
    suffix = np.full(grid + 2, np.inf)
    by = np.zeros(grid + 2, dtype=np.int64)
    for q in range(grid, 0, -1):
        if best[q] < suffix[q + 1]:
            suffix[q] = best[q]
            by[q] = q
        else:
            suffix[q] = suffix[q + 1]
            by[q] = by[q + 1]
    active = np.empty(grid + 1, dtype=np.int64)
    cost = np.empty(grid + 1)
    count = 0
    for q in range(1, grid + 1):
        value = suffix[q]
        take = by[q]
        for a in range(count):
            candidate = cost[a] + least[q - active[a]]
            if candidate < value:
                value = candidate
                take = active[a]
        least[q] = value
        first[q] = take
        if take == q and by[q] == q:
            active[count] = q
            cost[count] = best[q]
            count += 1
    return least, first


def trace(first: Ints, code: Ints, grid: int) -> Ints:
    """Codes of the pairs in the cheapest cover of `grid` units, with repetitions."""
    codes = []
    left = grid
    while left > 0:
        units = int(first[left])
        if units <= 0:
            return np.empty(0, dtype=np.int64)
        codes.append(int(code[units]))
        left -= units
    return np.array(codes, dtype=np.int64)
