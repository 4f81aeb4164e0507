"""Enumeration of the near-cheapest real covers of one demand group, by depth-first search. A real
cover meets the demand with its throughputs in floating point, and its own usage fits the
capacities. So the cheapest cover of a complete search is exact, although the knapsack, whose table
bounds the search, rounds. The method is route enumeration from vehicle routing: list all covers
whose reduced cost is below the gap, then choose among them by a small MIP, which keeps the tight
bound of the decomposition. The enumeration is compiled.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.performance.numba_decorators import compiled

DEPTH = 256
"""Largest number of instances in one cover that the search considers."""


@compiled
def enumerate_covers(
    price: Floats,
    throughput: Floats,
    indptr: Ints,
    resource: Ints,
    amount: Floats,
    capacity: Floats,
    least: Floats,
    demand: float,
    threshold: float,
    max_covers: int,
    max_tests: int,
    item_mark: Ints,
) -> tuple[Ints, Ints, int, bool]:
    """Covers whose price is at most `threshold`; of several covers with equal use of resources,
    only one is listed.

    price, throughput, item_mark (m,): of the items, largest throughput first. indptr, resource,
    amount: use of the items in compressed rows. Marks are additive 64-bit hashes of an item's use,
    so covers with equal use have equal sums. capacity: by resource. least: for q = 0, 1, ... units
    of the grid, a lower bound on the price of covering them. Returns the offsets and item indices
    of the covers in the order in which they are found, the number of item tests, and whether the
    search was complete.
    """
    m = price.shape[0]
    grid = least.shape[0] - 1
    scale = grid / demand
    left = capacity.copy()
    stack_item = np.zeros(DEPTH + 1, dtype=np.int64)
    stack_cost = np.zeros(DEPTH + 1)
    stack_rest = np.zeros(DEPTH + 1)
    stack_mark = np.zeros(DEPTH + 1, dtype=np.int64)
    stack_rest[0] = demand
    offsets = np.zeros(max_covers + 1, dtype=np.int64)
    items = np.empty(max_covers * 8 + DEPTH, dtype=np.int64)
    found = 0
    size = 0
    slots = 16
    while slots < 4 * max_covers:
        slots *= 2
    table = np.zeros(slots, dtype=np.int64)  # marks of the covers found so far; 0: a free slot
    tests = 0
    complete = True
    depth = 0
    tolerance = 1e-10 * demand
    while depth >= 0:
        j = stack_item[depth]
        if j >= m:
            depth -= 1
            if depth >= 0:
                taken = stack_item[depth] - 1
                for e in range(indptr[taken], indptr[taken + 1]):
                    left[resource[e]] += amount[e]
            continue
        stack_item[depth] = j + 1
        tests += 1
        if tests > max_tests:
            complete = False
            break
        cost = stack_cost[depth] + price[j]
        if cost > threshold:
            continue
        rest = stack_rest[depth] - throughput[j]
        if rest > tolerance:
            q = int(np.ceil(rest * scale - 1e-9))
            if cost + least[min(q, grid)] > threshold:
                continue
        fits = True
        for e in range(indptr[j], indptr[j + 1]):
            if left[resource[e]] < amount[e] - 1e-9:
                fits = False
                break
        if not fits:
            continue
        mark = stack_mark[depth] + item_mark[j]
        if rest <= tolerance:
            slot = (mark ^ (mark >> 29)) & (slots - 1)
            while table[slot] != 0 and table[slot] != mark:
                slot = (slot + 1) & (slots - 1)
            if table[slot] == mark:
                continue
            if found == max_covers or depth >= DEPTH - 1:
                complete = False
                break
            table[slot] = mark
            if size + depth + 1 > items.shape[0]:
                wider = np.empty(2 * items.shape[0] + DEPTH, dtype=np.int64)
                wider[:size] = items[:size]
                items = wider
            for level in range(depth + 1):
                items[size] = stack_item[level] - 1
                size += 1
            found += 1
            offsets[found] = size
            continue
        if depth + 1 >= DEPTH:
            complete = False
            continue
        for e in range(indptr[j], indptr[j + 1]):
            left[resource[e]] -= amount[e]
        depth += 1
        stack_item[depth] = j  # item indices never decrease, so each multiset is visited once
        stack_cost[depth] = cost
        stack_rest[depth] = rest
        stack_mark[depth] = mark
    return offsets[: found + 1], items[:size], tests, complete
