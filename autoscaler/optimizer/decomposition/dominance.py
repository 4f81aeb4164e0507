"""Finds columns that no plan needs: another column uses the same resources, costs no more and
serves at least as many requests/s.

The removal of such a column is exact, because the other column can replace it in every plan.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints


def dominated(
    row: Ints, indptr: Ints, resource: Ints, amount: Floats, cost: Floats, rate: Floats, may: Bools
) -> Bools:
    """For each column (n,), whether another column with the same `row` (n,) dominates it.

    indptr (n + 1,), resource, amount: the use of resources in compressed form. Only columns in
    `may` (n,) are compared; these are the columns without a bound on their count.
    """
    out = np.zeros(len(row), dtype=np.bool_)
    key = _marks(row, indptr, resource, amount)
    ids = _repeated(key, np.flatnonzero(may))
    if not len(ids):
        return out
    order = ids[np.lexsort((-rate[ids], cost[ids], key[ids]))]
    first = np.concatenate([[True], key[order][1:] != key[order][:-1]])
    # Use ranks instead of rates, so that adding the key makes the running maximum restart for every
    # key.
    _, rank = np.unique(rate[order], return_inverse=True)
    level = rank.ravel() + np.cumsum(first) * (len(order) + 1)
    best = np.maximum.accumulate(level)
    out[order[1:]] = (level[1:] <= best[:-1]) & ~first[1:]
    return out


def _marks(row: Ints, indptr: Ints, resource: Ints, amount: Floats) -> Ints:
    """A number for each column (n,). Columns with the same row and use have equal numbers; other
    columns have equal numbers only with a probability of about 2**-64. The order of a column's
    entries does not matter."""
    bits = np.ascontiguousarray(amount, dtype=np.float64).view(np.uint64)
    each = _mixed(bits + _mixed(resource.astype(np.uint64)))
    total = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(each, dtype=np.uint64)])
    found: Ints = total[indptr[1:]] - total[indptr[:-1]] + _mixed(~row.astype(np.uint64))
    return found


def _mixed(values: Ints) -> Ints:
    """The finalizer of splitmix64: every bit of a value changes half of the bits of the result."""
    mixed = values + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    last: Ints = mixed ^ (mixed >> np.uint64(31))
    return last


def _repeated(key: Ints, ids: Ints) -> Ints:
    """The columns in `ids` whose `key` also occurs for another column in `ids`."""
    mine = key[ids]
    ordered = np.sort(mine)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    if not len(twice):
        return ids[:0]
    twice = np.unique(twice)
    at = np.minimum(np.searchsorted(twice, mine), len(twice) - 1)
    again: Ints = ids[twice[at] == mine]
    return again
