"""A plan in any case: serve every group as large a part of its demand as goes in turn.

The group that is served the smallest share takes, of its pairs that still fit, the one that serves
most per price; until nothing fits that group. The share that it has then is the fraction that the
plan serves. There is no search in it: it takes a moment where the search ran out of time.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.arrays import Floats
from loadtests.coral.groups import Decomposed, pairs
from loadtests.coral.incumbent import Incumbent

PAIRS = 2000
"""Pairs of a group that are looked at, those that serve most per price."""


def filled(problem: Decomposed, mu: Floats) -> tuple[float, Incumbent | None]:
    """The smallest share of demand over the groups and the plan that serves it; none where a group
    gets nothing. Prices are money plus `mu` (k,).
    """
    flat = problem.money + mu.reshape(-1, problem.money.shape[0]).T
    tables = []
    for group in problem.groups:
        table = pairs(group, flat, np.flatnonzero(group.allowed.ravel()))
        worth = np.minimum(table.throughput, group.demand) / np.maximum(table.money, 1e-9)
        best = table.code[np.argsort(-worth, kind="stable")[:PAIRS]]
        tables.append(pairs(group, problem.money, best))
    left = problem.capacity.astype(np.float64).copy()
    chosen: list[list[int]] = [[] for _ in tables]
    share = np.zeros(len(tables))
    while (share < 1.0).any():
        k = int(np.argmin(share))
        table = tables[k]
        tight = table.amount > left[table.resource] + 1e-9
        stuck = np.zeros(len(table.code), dtype=np.bool_)
        stuck[np.repeat(np.arange(len(stuck)), np.diff(table.indptr))[tight]] = True
        open_ = np.flatnonzero(~stuck)
        if not len(open_):
            break
        pick = int(open_[0])
        entries = slice(int(table.indptr[pick]), int(table.indptr[pick + 1]))
        np.subtract.at(left, table.resource[entries], table.amount[entries])
        chosen[k].append(pick)
        share[k] += float(table.throughput[pick]) / problem.groups[k].demand
    served = float(np.minimum(1.0, share).min())
    if served <= 0.0:
        return 0.0, None
    resources = len(problem.capacity)
    cost, use = np.zeros(len(tables)), np.zeros((len(tables), resources))
    codes = []
    places = problem.money.shape[1]
    for k, (table, picks) in enumerate(zip(tables, chosen, strict=True)):
        for pick in picks:
            entries = slice(int(table.indptr[pick]), int(table.indptr[pick + 1]))
            np.add.at(use[k], table.resource[entries], table.amount[entries])
        cost[k] = float(table.money[picks].sum()) if picks else 0.0
        item, place = np.divmod(table.code[np.array(picks, dtype=np.int64)], places)
        codes.append(problem.groups[k].ids[item] * places + place)
    plan = Incumbent(cost, use, tuple(codes))
    return served, plan
