"""The bridge between the general column form and groups, both ways.

Owns the test whether a problem is structured (every column serves one row and only uses), the
lowering to groups, and the columns of a decomposed problem. Knows
nothing of solving.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.groups import Decomposed, Group, fitting, pairs
from autoscaler.optimizer.groups import units_of as units
from autoscaler.optimizer.incumbent import Incumbent
from autoscaler.optimizer.problem import AllocationProblem


def is_structured(problem: AllocationProblem) -> bool:
    """Whether the decomposition applies: every column serves one row and provides nothing.

    Rented nodes tie all groups together: the decomposition's bound is then worth little (4% below
    what one MIP proves in a second), so such a problem is none for it.
    """
    serves = np.diff(problem.serve_indptr)
    return bool((serves == 1).all() and (problem.use_amount >= 0).all())


def lower_columns(problem: AllocationProblem, target: Floats) -> Decomposed:
    """Groups of one place, by demand row with a positive `target` (m,) share of its demand.

    A bounded column gets a resource row of its own, unless its bound can never bind.
    """
    n, k = problem.columns, len(problem.capacity)
    row_of, rate_of = problem.serve_row, problem.serve_rate
    demand = problem.demand_req_per_s * target
    bounded = np.flatnonzero(problem.upper < np.ceil(demand[row_of] / rate_of))
    capacity = np.concatenate([problem.capacity, problem.upper[bounded]]).astype(np.float64)
    own = np.full(n, -1, dtype=np.int64)
    own[bounded] = k + np.arange(len(bounded))
    column = np.concatenate([np.repeat(np.arange(n), np.diff(problem.use_indptr)), bounded])
    resource = np.concatenate([problem.use_resource, own[bounded]])
    amount = np.concatenate([problem.use_amount, np.ones(len(bounded))])
    order = np.lexsort((resource, column))
    column, resource, amount = column[order], resource[order], amount[order]
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
        groups.append(fitting(group, capacity))
    return Decomposed(tuple(groups), np.zeros((len(capacity), 1)), capacity)


def counts_of(plan: Incumbent, columns: int) -> Ints:
    """Counts by column of a plan over groups of one place."""
    counts = np.zeros(columns, dtype=np.int64)
    for chosen in plan.pairs:
        np.add.at(counts, chosen, 1)
    return counts


def columns_of(problem: Decomposed) -> tuple[AllocationProblem, Ints, Ints]:
    """Every allowed pair as a column, with its group and code.

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
    owners = np.concatenate(owner).astype(np.int64)
    flat = AllocationProblem(
        cost_usd_per_h=np.concatenate(cost),
        upper=np.full(len(owners), np.inf),
        serve_indptr=np.arange(len(owners) + 1),
        serve_row=owners,
        serve_rate=np.concatenate(rate),
        use_indptr=np.concatenate(indptr).astype(np.int64),
        use_resource=np.concatenate(resource).astype(np.int64),
        use_amount=np.concatenate(amount),
        demand_req_per_s=np.array([g.demand for g in problem.groups]),
        priority=np.zeros(len(problem.groups), dtype=np.int64),
        capacity=problem.capacity,
    )
    return flat, owners, np.concatenate(code).astype(np.int64)


def plan_of(
    problem: Decomposed, flat: AllocationProblem, owners: Ints, codes: Ints, counts: Ints
) -> Incumbent:
    """The incumbent that counts over `columns_of` make."""
    groups, resources = len(problem.groups), len(problem.capacity)
    cost, use = np.zeros(groups), np.zeros((groups, resources))
    chosen: list[list[int]] = [[] for _ in range(groups)]
    for j in np.flatnonzero(counts > 0):
        k, n = int(owners[j]), int(counts[j])
        cost[k] += n * float(flat.cost_usd_per_h[j])
        at = slice(int(flat.use_indptr[j]), int(flat.use_indptr[j + 1]))
        np.add.at(use[k], flat.use_resource[at], n * flat.use_amount[at])
        chosen[k].extend([int(codes[j])] * n)
    return Incumbent(cost, use, tuple(np.array(c, dtype=np.int64) for c in chosen))


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
    if sum(len(c) for c in chosen) < int(counts[wanted].sum()):
        return None  # some of it no longer fits at all
    plan = Incumbent(cost, use, tuple(chosen))
    return None if plan.excess(lowered).any() else plan
