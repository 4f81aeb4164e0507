"""MIP of the decomposition: chooses one cover per group from pools of covers.

The MIP is small and its relaxation is tight. It is built as arrays and solved in a new HiGHS
object, because the time limit of HiGHS accumulates over the runs of one object.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import highspy
import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.decomposition.cover_pools import Covers
from autoscaler.optimizer.milp import mip_solver

NO_PROBING = 2**15
"""HiGHS's presolve without probing: probing tries thousands of exclusive binaries one by one, which
takes seconds, and fixes few of them."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A solution of the MIP: counts of the parts by group, counts of the free columns, their cost,
    and the MIP's bound.

    `excess` (k,): amounts above the capacities (zero unless a penalty allows them). `solved`: the
    MIP ended with a proof, not at a limit.
    """

    counts: tuple[Ints, ...]
    cost: float
    bound: float
    excess: Floats
    solved: bool
    nodes: int
    columns: int


def choose(
    pools: list[Covers],
    capacity: Floats,
    nodes: int,
    seconds: float,
    gap: float,
    penalty: Floats | None = None,
    last_fits: bool = False,
) -> Choice | None:
    """Choose parts that form one cover per group within `capacity` (k,), at least cost; None if the
    search finds no such choice.

    penalty (k,): capacities may be exceeded at this price per unit. last_fits: the last parts of
    all pools are whole covers that fit together; the search starts from them.
    """
    resources, groups = len(capacity), len(pools)
    covers = sum(len(p) for p in pools)
    slack = 0 if penalty is None else resources
    total = covers + slack
    owner = np.repeat(np.arange(groups), [len(p) for p in pools])
    use = np.vstack([p.use for p in pools])
    if penalty is not None:
        use = np.vstack([use, -np.eye(resources)])
    cost = [p.cost for p in pools] + ([] if penalty is None else [penalty])
    convexity = np.zeros((total, groups))
    convexity[np.arange(covers), owner] = np.concatenate([p.share for p in pools])
    dense = np.hstack([use, convexity])
    column, row = np.nonzero(dense)
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = total, resources + groups
    lp.col_cost_ = np.concatenate(cost)
    lp.col_lower_ = np.zeros(total)
    most = [p.upper for p in pools]
    lp.col_upper_ = np.concatenate([*most, np.full(slack, highspy.kHighsInf)])
    lp.row_lower_ = np.concatenate([np.full(resources, -highspy.kHighsInf), np.ones(groups)])
    lp.row_upper_ = np.concatenate([capacity, np.full(groups, highspy.kHighsInf)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(column, np.arange(total + 1)).astype(np.int32)
    lp.a_matrix_.index_ = row.astype(np.int32)
    lp.a_matrix_.value_ = dense[column, row]
    whole = highspy.HighsVarType.kInteger
    lp.integrality_ = [whole] * (total - slack) + [highspy.HighsVarType.kContinuous] * slack
    solver = mip_solver(nodes, seconds, gap)
    solver.setOptionValue("presolve_rule_off", NO_PROBING)
    solver.passModel(lp)
    if last_fits:
        begin = np.zeros(total)
        begin[np.cumsum([len(p) for p in pools]) - 1] = 1.0
        solution = highspy.HighsSolution()
        solution.col_value = begin.tolist()
        solver.setSolution(solution)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    x = np.asarray(solver.getSolution().col_value)
    whole_x = np.round(x).astype(np.int64)
    starts = np.cumsum([0] + [len(p) for p in pools])
    counts = tuple(whole_x[a:b] for a, b in itertools.pairwise(starts))
    used = sum((n @ p.use for p, n in zip(pools, counts, strict=True)), np.zeros(resources))
    money = sum((float(n @ p.cost) for p, n in zip(pools, counts, strict=True)), 0.0)
    return Choice(
        counts=counts,
        cost=money,
        bound=float(info.mip_dual_bound),
        excess=np.where(used > capacity + 1e-9, used - capacity, 0.0),
        solved=solver.getModelStatus() == highspy.HighsModelStatus.kOptimal,
        nodes=max(0, int(info.mip_node_count)),
        columns=total,
    )
