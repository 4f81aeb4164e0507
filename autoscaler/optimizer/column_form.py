"""The bridge between the general column form and groups, both ways.

Owns the test whether a problem is structured (every serving column serves one row and only uses;
the others are bounded), the lowering to groups, and the columns of a decomposed problem. Knows
nothing of solving.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.groups import Decomposed, FreeColumns, Group, fitting, pairs
from autoscaler.optimizer.groups import units_of as units
from autoscaler.optimizer.incumbent import Incumbent
from autoscaler.optimizer.problem import AllocationProblem


def is_structured(problem: AllocationProblem) -> bool:
    """Whether the decomposition applies: at most one row a column, and none that serves gives."""
    serves = np.diff(problem.serve_indptr)
    owner = np.repeat(np.arange(problem.columns), np.diff(problem.use_indptr))
    gives = np.zeros(problem.columns, dtype=np.bool_)
    gives[owner[problem.use_amount < 0]] = True
    free = serves == 0
    bounded = np.isfinite(problem.upper[free]).all()
    return bool((serves <= 1).all() and not gives[~free].any() and bounded)


def lower_columns(problem: AllocationProblem, target: Floats) -> Decomposed:
    """Groups of one place, by demand row with a positive `target` (m,) share of its demand.

    A bounded column gets a resource row of its own, unless its bound can never bind.
    """
    n, k = problem.columns, len(problem.capacity)
    serves = np.diff(problem.serve_indptr)
    row_of = np.full(n, -1, dtype=np.int64)
    rate_of = np.zeros(n)
    row_of[serves == 1] = problem.serve_row
    rate_of[serves == 1] = problem.serve_rate
    demand = problem.demand_req_per_s * target
    served = row_of >= 0
    enough = np.full(n, np.inf)
    enough[served] = np.ceil(demand[row_of[served]] / rate_of[served])
    bounded = np.flatnonzero(served & (problem.upper < enough))
    capacity = np.concatenate([problem.capacity, problem.upper[bounded]]).astype(np.float64)
    own = np.full(n, -1, dtype=np.int64)
    own[bounded] = k + np.arange(len(bounded))
    column = np.concatenate([np.repeat(np.arange(n), np.diff(problem.use_indptr)), bounded])
    resource = np.concatenate([problem.use_resource, own[bounded]])
    amount = np.concatenate([problem.use_amount, np.ones(len(bounded))])
    order = np.lexsort((resource, column))
    column, resource, amount = column[order], resource[order], amount[order]
    free_ids = np.flatnonzero(serves == 0)
    dense = np.zeros((len(free_ids), len(capacity)))
    slot = np.full(n, -1, dtype=np.int64)
    slot[free_ids] = np.arange(len(free_ids))
    mine = slot[column] >= 0
    np.add.at(dense, (slot[column[mine]], resource[mine]), amount[mine])
    free = FreeColumns(
        problem.cost_usd_per_h[free_ids].astype(np.float64),
        problem.upper[free_ids].astype(np.float64),
        dense,
        free_ids,
    )
    bare = Decomposed((), np.zeros((len(capacity), 1)), capacity, free)
    starts = np.searchsorted(column, np.arange(n + 1))
    groups = []
    for row in np.flatnonzero(demand > 0):
        ids = np.flatnonzero(row_of == row)
        length = starts[ids + 1] - starts[ids]
        indptr = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
        at = np.repeat(starts[ids] - indptr[:-1], length) + np.arange(indptr[-1])
        group = Group(
            indptr=indptr,
            feature=resource[at].astype(np.int32),
            amount=amount[at].astype(np.float64),
            base=problem.cost_usd_per_h[ids].astype(np.float64),
            throughput=rate_of[ids],
            units=units(rate_of[ids], float(demand[row])),
            allowed=np.ones((len(ids), 1), dtype=np.bool_),
            ids=ids,
            demand=float(demand[row]),
        )
        groups.append(fitting(group, bare.most))
    return Decomposed(tuple(groups), bare.money, capacity, free)


def counts_of(plan: Incumbent, problem: Decomposed, columns: int) -> Ints:
    """Counts by column of a plan over groups of one place."""
    counts = np.zeros(columns, dtype=np.int64)
    for chosen in plan.pairs:
        np.add.at(counts, chosen, 1)
    counts[problem.free.ids] += plan.free
    return counts


def columns_of(problem: Decomposed) -> tuple[AllocationProblem, Ints, Ints]:
    """Every allowed pair as a column (free columns last), with its group (-1: free) and code.

    The code of a pair is `id * R + place`, as in the covers.
    """
    places = problem.money.shape[1]
    cost, rate, owner, code = [], [], [], []
    indptr, resource, amount = [np.zeros(1, dtype=np.int64)], [], []
    for k, group in enumerate(problem.groups):
        table = pairs(group, problem.money, np.flatnonzero(group.allowed.ravel()))
        item, place = np.divmod(table.code, places)
        cost.append(table.money)
        rate.append(table.throughput)
        owner.append(np.full(len(item), k))
        code.append(group.ids[item] * places + place)
        indptr.append(table.indptr[1:] + indptr[-1][-1])
        resource.append(table.resource)
        amount.append(table.amount)
    free = problem.free
    row, used = np.nonzero(free.use)
    indptr.append(indptr[-1][-1] + np.searchsorted(row, np.arange(1, len(free.cost) + 1)))
    owners = np.concatenate([*owner, np.full(len(free.cost), -1)]).astype(np.int64)
    serving = int((owners >= 0).sum())
    flat = AllocationProblem(
        cost_usd_per_h=np.concatenate([*cost, free.cost]),
        upper=np.concatenate([np.full(serving, np.inf), free.upper]),
        serve_indptr=np.minimum(np.arange(len(owners) + 1), serving),
        serve_row=owners[:serving],
        serve_rate=np.concatenate([*rate, np.zeros(0)]),
        use_indptr=np.concatenate(indptr).astype(np.int64),
        use_resource=np.concatenate([*resource, used]).astype(np.int64),
        use_amount=np.concatenate([*amount, free.use[row, used]]),
        demand_req_per_s=np.array([g.demand for g in problem.groups]),
        priority=np.zeros(len(problem.groups), dtype=np.int64),
        capacity=problem.capacity,
    )
    return flat, owners, np.concatenate([*code, free.ids]).astype(np.int64)


def plan_of(
    problem: Decomposed, flat: AllocationProblem, owners: Ints, codes: Ints, counts: Ints
) -> Incumbent:
    """The incumbent that counts over `columns_of` make."""
    groups, resources = len(problem.groups), len(problem.capacity)
    cost, use = np.zeros(groups), np.zeros((groups, resources))
    chosen: list[list[int]] = [[] for _ in range(groups)]
    for j in np.flatnonzero((counts > 0) & (owners >= 0)):
        k, n = int(owners[j]), int(counts[j])
        cost[k] += n * float(flat.cost_usd_per_h[j])
        at = slice(int(flat.use_indptr[j]), int(flat.use_indptr[j + 1]))
        np.add.at(use[k], flat.use_resource[at], n * flat.use_amount[at])
        chosen[k].extend([int(codes[j])] * n)
    return Incumbent(
        cost, use, tuple(np.array(c, dtype=np.int64) for c in chosen), counts[owners < 0]
    )


def plan_from_counts(
    problem: AllocationProblem, lowered: Decomposed, target: Floats, counts: Ints
) -> Incumbent | None:
    """The incumbent of `counts` (n,) over the columns; None where it does not serve and fit."""
    served = problem.served_req_per_s(counts)
    if (served < problem.demand_req_per_s * target * (1.0 - 1e-10)).any():
        return None
    groups, resources = len(lowered.groups), len(lowered.capacity)
    cost, use = np.zeros(groups), np.zeros((groups, resources))
    chosen = []
    for k, group in enumerate(lowered.groups):
        n = counts[group.ids]
        cost[k] = float(n @ group.base)
        each = np.repeat(n, np.diff(group.indptr)) * group.amount
        use[k] = np.bincount(group.feature, each, minlength=resources)
        chosen.append(np.repeat(group.ids, n))
    wanted = target[problem.serve_row] > 0
    if sum(len(c) for c in chosen) < int(counts[np.diff(problem.serve_indptr) > 0][wanted].sum()):
        return None  # some of it no longer fits at all
    plan = Incumbent(cost, use, tuple(chosen), counts[lowered.free.ids])
    return None if plan.excess(lowered).any() else plan
