"""A decomposed problem as columns, for one MIP over all of it, and a plan of those columns back."""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.arrays import Ints
from autoscaler.optimizer.problem import AllocationProblem
from loadtests.coral.groups import Decomposed, pairs
from loadtests.coral.incumbent import Incumbent


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
