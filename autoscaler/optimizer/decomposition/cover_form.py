"""Converts an allocation problem into groups, and a plan over groups back into counts.

A problem has cover form if every column serves at most one demand row and provides no resource. A
group holds the columns of one row. A bound on the count of a column becomes a resource.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.decomposition.dominance import dominated
from autoscaler.optimizer.decomposition.groups import Decomposed, Group, fitting, units_of
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.problem import AllocationProblem

_ROOM = 1e-9
_MOST_BOUNDS = 500
"""Largest number of columns with a bound, because each bound becomes a resource of the master
LP."""
_COMPARED = 300_000
"""Above this number of columns, dominated columns are not removed, because pricing all columns is
faster."""


def has_cover_form(problem: AllocationProblem) -> bool:
    """Whether every column serves at most one row and provides no resource, and at most
    _MOST_BOUNDS columns have a bound."""
    one_row = bool((np.diff(problem.serve_indptr) <= 1).all())
    if not one_row or not bool((problem.use_amount >= 0.0).all()):
        return False
    return len(_bounded(problem, _row_of(problem))) <= _MOST_BOUNDS


@dataclass(frozen=True, slots=True)
class CoverForm:
    """An allocation problem as groups of covers: group i covers demand row `rows[i]`. A row without
    demand has no group. `columns`: number of columns of the allocation problem."""

    decomposed: Decomposed
    rows: Ints
    columns: int

    def counts_of(self, plan: Incumbent) -> Ints:
        """Counts (n,) of the plan."""
        pairs = np.concatenate([np.zeros(0, dtype=np.int64), *plan.pairs])
        return np.bincount(pairs, minlength=self.columns).astype(np.int64)

    def plan_of(self, problem: AllocationProblem, counts: Ints) -> Incumbent:
        """The plan over groups for `counts` (n,) of the columns."""
        groups, resources = len(self.rows), len(self.decomposed.capacity)
        cost, use = np.zeros(groups), np.zeros((groups, resources))
        pairs: list[Ints] = []
        served = np.flatnonzero(counts)
        row = _row_of(problem)[served]
        for i, group in enumerate(self.decomposed.groups):
            mine = served[row == self.rows[i]]
            at = np.searchsorted(group.ids, mine)
            there = (at < len(group.ids)) & (group.ids[np.minimum(at, len(group.ids) - 1)] == mine)
            for j, many in zip(at[there], counts[mine[there]], strict=True):
                entries = slice(int(group.indptr[j]), int(group.indptr[j + 1]))
                np.add.at(use[i], group.feature[entries], many * group.amount[entries])
                cost[i] += float(many * group.base[j])
            pairs.append(np.repeat(mine[there], counts[mine[there]]))
        return Incumbent(cost, use, tuple(pairs))


def cover_form(problem: AllocationProblem, target: Floats) -> CoverForm:
    """The groups that cover the fraction `target` (m,) of the demand of each row."""
    rows = np.flatnonzero(target > 0.0)
    row = _row_of(problem)
    bounded = _bounded(problem, row)
    resources = len(problem.capacity)
    token = np.full(problem.columns, -1, dtype=np.int64)
    token[bounded] = resources + np.arange(len(bounded))
    capacity = np.concatenate([problem.capacity, np.floor(problem.upper[bounded] + _ROOM)])
    order = np.argsort(row, kind="stable") if (np.diff(row) < 0).any() else np.arange(len(row))
    if problem.columns <= _COMPARED:
        order = order[~_dominated(problem, row, token < 0)[order]]
    ends = np.searchsorted(row[order], np.arange(len(target) + 1))
    groups = []
    for k in rows:
        ids = order[ends[k] : ends[k + 1]]
        group = _group(problem, ids, float(problem.demand_req_per_s[k] * target[k]), token)
        groups.append(fitting(group, capacity))
    money = np.zeros((len(capacity), 1))
    return CoverForm(Decomposed(tuple(groups), money, capacity), rows, problem.columns)


def _dominated(problem: AllocationProblem, row: Ints, unbounded: Bools) -> Bools:
    serves = row < len(problem.demand_req_per_s)
    rate = np.zeros(problem.columns)
    rate[serves] = problem.serve_rate
    return dominated(
        row,
        problem.use_indptr,
        problem.use_resource,
        problem.use_amount.astype(np.float64),
        problem.cost_usd_per_h,
        rate,
        unbounded & serves,
    )


def _group(problem: AllocationProblem, ids: Ints, demand: float, token: Ints) -> Group:
    """The columns `ids` as items of one group."""
    length = np.diff(problem.use_indptr)[ids]
    indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    # Contiguous columns are a slice, so no copy is needed.
    if len(ids) and ids[-1] - ids[0] == len(ids) - 1:
        at: slice | Ints = slice(
            int(problem.use_indptr[ids[0]]), int(problem.use_indptr[ids[-1] + 1])
        )
    else:
        at = np.repeat(problem.use_indptr[ids] - indptr[:-1], length) + np.arange(indptr[-1])
    feature = problem.use_resource[at].astype(np.int32)
    amount = problem.use_amount[at].astype(np.float64)
    own = np.flatnonzero(token[ids] >= 0)
    if len(own):
        where = indptr[own + 1]
        feature = np.insert(feature, where, token[ids[own]].astype(np.int32))
        amount = np.insert(amount, where, 1.0)
        indptr += np.concatenate([[0], np.cumsum(token[ids] >= 0)])
    rate = problem.serve_rate[problem.serve_indptr[ids]].astype(np.float64)
    return Group(
        indptr=indptr,
        feature=feature,
        amount=amount,
        base=problem.cost_usd_per_h[ids].astype(np.float64),
        throughput=rate,
        units=units_of(rate, demand),
        allowed=np.ones((len(ids), 1), dtype=np.bool_),
        ids=ids.astype(np.int64),
        demand=demand,
    )


def _row_of(problem: AllocationProblem) -> Ints:
    """The demand row of every column; for a column that serves no row, the number of rows."""
    serves = np.diff(problem.serve_indptr) > 0
    row = np.full(problem.columns, len(problem.demand_req_per_s), dtype=np.int64)
    row[serves] = problem.serve_row
    return row


def _bounded(problem: AllocationProblem, row: Ints) -> Ints:
    """The columns whose declared bound may be tighter than the bound that follows from capacities
    and demand."""
    finite: Bools = np.isfinite(problem.upper) & (row < len(problem.demand_req_per_s))
    ids = np.flatnonzero(finite)
    if not len(ids):
        return ids
    rate = problem.serve_rate[problem.serve_indptr[ids]]
    most = np.ceil(problem.demand_req_per_s[row[ids]] * (1.0 + 1e-6) / rate)
    return ids[problem.upper[ids] < most]
