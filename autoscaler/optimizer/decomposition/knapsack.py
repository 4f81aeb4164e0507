"""The covering knapsack of one demand group: price the items, then cover the demand cheapest.

Owns the compiled kernels of the Lagrangian subproblem: item prices under capacity multipliers, the
dynamic program over throughput units, the tracing of its answer and reduced-cost fixing.
Throughput is rounded UP to units, so what the program returns is a lower bound on any real cover.
Knows nothing of the master problem, of demand rows beyond one group, or of where items came from.

Layout of a group: n items in compressed rows (`indptr`, `feature`, `amount`), each of which may be
placed in R places; `weight[f, r]` is the price of one unit of feature f in place r (its money plus
its multiplier). `base[i]` is a price of the item itself. `allowed[i, r]` says whether the pair is
still in the problem. A pair (item, place) is coded as `item * R + place`.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.arrays import Bools, Floats, Ints
from autoscaler.performance.numba_decorators import compiled

UNITS = 8000
"""Grid of the knapsack. 8000 units lose about 0.01% of the demand for each item of a cover."""


@compiled
def cheapest_by_units(
    indptr: Ints,
    feature: Ints,
    amount: Floats,
    base: Floats,
    units: Ints,
    allowed: Bools,
    weight: Floats,
    grid: int,
) -> tuple[Floats, Ints]:
    """Cheapest pair for each number of units: prices (grid + 1,) and codes (grid + 1,)."""
    n, places = allowed.shape
    best = np.full(grid + 1, np.inf)
    code = np.full(grid + 1, -1, dtype=np.int64)
    price = np.empty(places)
    for i in range(n):
        u = units[i]
        if u <= 0:
            continue
        for r in range(places):
            price[r] = base[i]
        for e in range(indptr[i], indptr[i + 1]):
            f = feature[e]
            a = amount[e]
            for r in range(places):
                price[r] += a * weight[f, r]
        for r in range(places):
            if price[r] < best[u] and allowed[i, r]:
                best[u] = price[r]
                code[u] = i * places + r
    return best, code


@compiled
def cover(best: Floats, grid: int) -> tuple[Floats, Ints]:
    """Least price to cover 0..grid units, and the item (by its units) that each cover takes first.

    Only items that no combination of smaller ones beats stay in the inner loop: on real libraries
    a few dozen of thousands.
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


@compiled
def trace(first: Ints, code: Ints, grid: int) -> Ints:
    """Codes of the pairs in the cheapest cover of `grid` units (with repetition)."""
    out = np.empty(grid + 1, dtype=np.int64)
    count = 0
    q = grid
    while q > 0:
        u = first[q]
        if u <= 0:
            return np.empty(0, dtype=np.int64)
        out[count] = code[u]
        count += 1
        q -= u
    return out[:count].copy()


@compiled
def near_pairs(
    indptr: Ints,
    feature: Ints,
    amount: Floats,
    base: Floats,
    units: Ints,
    allowed: Bools,
    weight: Floats,
    least: Floats,
    slack: float,
) -> tuple[Ints, Floats]:
    """Codes and prices of the pairs that some cover within `slack` of the cheapest may hold.

    The best cover that holds pair j costs c_j + least[grid - u_j], as items may repeat: a pair
    above the slack is in no plan that the slack allows (reduced-cost fixing).
    """
    n, places = allowed.shape
    grid = least.shape[0] - 1
    price = np.empty(places)
    codes = np.empty(1024, dtype=np.int64)
    prices = np.empty(1024)
    count = 0
    for i in range(n):
        u = units[i]
        if u <= 0:
            continue
        for r in range(places):
            price[r] = base[i]
        for e in range(indptr[i], indptr[i + 1]):
            f = feature[e]
            a = amount[e]
            for r in range(places):
                price[r] += a * weight[f, r]
        most = slack + least[grid] - least[grid - u]
        for r in range(places):
            if price[r] <= most and allowed[i, r]:
                if count == codes.shape[0]:
                    wider = np.empty(2 * count, dtype=np.int64)
                    wider[:count] = codes
                    codes = wider
                    dearer = np.empty(2 * count)
                    dearer[:count] = prices
                    prices = dearer
                codes[count] = i * places + r
                prices[count] = price[r]
                count += 1
    return codes[:count].copy(), prices[:count].copy()
