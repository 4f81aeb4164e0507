"""Spend what a gap allows on stability: of the plans within a cost, the one that stops the least.

Owns the MIP that turns the objective round: cost becomes a row, stops (then starts) are counted.
Whatever a plan within the cost may hold lies near the bound in reduced cost, so few columns do.
Knows nothing of how tokens of the running fleet come to be resources.
"""

from __future__ import annotations

import highspy
import numpy as np

from autoscaler.optimizer.arrays import Bools
from autoscaler.optimizer.milp import mip_solver
from loadtests.coral.choose import Choice
from loadtests.coral.decomposition import Outcome
from loadtests.coral.dual import subproblem
from loadtests.coral.groups import Decomposed
from loadtests.coral.incumbent import Incumbent
from loadtests.coral.knapsack import UNITS
from loadtests.coral.limits import SearchOptions, Work
from loadtests.coral.pool import (
    Covers,
    Scene,
    covers_within,
    items_within,
    joined,
    marks_for,
)

COLUMNS = 500
"""Most columns of the MIP, over all groups."""
COVERS = 400
"""Most covers of one group in it; a group with more enters by its single pairs."""
TESTS = 3_000_000
"""Item tests per group."""
SHARES = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15)
"""Parts of the slack between cost and bound that a group may spend, widest first; with all of it
the list is complete, but often too long."""
WEIGHT_OF_START = 0.01
"""Against one stop: starts only decide between plans that stop as many."""


def fewest_stops(
    problem: Decomposed,
    outcome: Outcome,
    tokens: Bools,
    most_usd_per_h: float,
    options: SearchOptions,
) -> tuple[Incumbent | None, Work]:
    """The plan of at most `most_usd_per_h` that uses most `tokens` (k,), then starts the least.

    `outcome` holds a plan that costs no more, and the multipliers (k,) that say what lies near.
    None where the MIP found nothing within its limits.
    """
    if outcome.plan is None:
        return None, Work()
    weight = problem.weight(outcome.mu)
    scene = Scene(
        problem.money, weight, problem.capacity, marks_for(len(problem.capacity), options.seed)
    )
    bound = -float(outcome.mu @ problem.capacity)
    bound += sum(float(subproblem(group, weight)[0][UNITS]) for group in problem.groups)
    work = Work()
    for share in SHARES:
        pools = _pools(problem, scene, outcome.plan, max(0.0, share * (most_usd_per_h - bound)))
        work += Work(search_tests=sum(p.tests for p in pools))
        if sum(len(p) for p in pools) <= COLUMNS:
            break
    else:
        return None, work
    choice = _choose(pools, problem, tokens, most_usd_per_h, options)
    work += Work(mips=1, mip_columns=sum(len(p) for p in pools))
    if choice is None:
        return None, work
    found = outcome.plan.exchange(np.arange(len(pools)), pools, choice)
    return found, work + Work(mip_nodes=choice.nodes)


def _pools(problem: Decomposed, scene: Scene, plan: Incumbent, slack: float) -> list[Covers]:
    """Per group the covers within `slack`, or the pairs they are made of; and the plan's own."""
    pools = []
    for k, group in enumerate(problem.groups):
        least, _ = subproblem(group, scene.weight)
        near = covers_within(group, scene, least, slack, COVERS, TESTS)
        if near.within < 0:
            near = items_within(group, scene, least, slack)
        pools.append(joined(near, plan.cover(k)))
    return pools


def _choose(
    pools: list[Covers],
    problem: Decomposed,
    tokens: Bools,
    most_usd_per_h: float,
    options: SearchOptions,
) -> Choice | None:
    """Counts per part with the most tokens used; None if nothing was found within the limits."""
    sizes = [len(p) for p in pools]
    columns, groups, resources = sum(sizes), len(pools), len(problem.capacity)
    use = np.vstack([p.use for p in pools])
    cost = np.concatenate([p.cost for p in pools])
    serves = np.zeros((columns, groups))
    serves[np.arange(columns), np.repeat(np.arange(groups), sizes)] = np.concatenate(
        [p.share for p in pools]
    )
    dense = np.hstack([use, serves, cost[:, None] / most_usd_per_h])
    column, row = np.nonzero(dense)
    kept = use[:, tokens].sum(axis=1)
    started = np.concatenate([np.diff(p.offsets) for p in pools]) - kept
    infinite = highspy.kHighsInf
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, dense.shape[1]
    lp.col_cost_ = WEIGHT_OF_START * started - kept
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.concatenate([p.upper for p in pools])
    lp.row_lower_ = np.concatenate([np.full(resources, -infinite), np.ones(groups), [-infinite]])
    lp.row_upper_ = np.concatenate([problem.capacity, np.full(groups, infinite), [1.0]])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(column, np.arange(columns + 1)).astype(np.int32)
    lp.a_matrix_.index_ = row.astype(np.int32)
    lp.a_matrix_.value_ = dense[column, row]
    lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver = mip_solver(options.mip_nodes // 2, min(10.0, options.left_s()), 1e-3)
    solver.passModel(lp)
    solver.run()
    info = solver.getInfo()
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    x = np.round(np.asarray(solver.getSolution().col_value)).astype(np.int64)
    return Choice(
        counts=tuple(np.split(x, np.cumsum(sizes)[:-1])),
        cost=float(x @ cost),
        bound=float(info.mip_dual_bound),
        excess=np.maximum(0.0, x @ use - problem.capacity),
        solved=solver.getModelStatus() == highspy.HighsModelStatus.kOptimal,
        nodes=max(0, int(info.mip_node_count)),
        columns=columns,
    )
