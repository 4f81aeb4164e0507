"""A MIP over the columns of a problem.

It is built from arrays, and its result includes the solver's proven bound. The LP relaxations of
the cost and of the smallest fraction are here too. Demand rows are divided by their demand, so the
solver's tolerance is relative to the demand.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.problem import AllocationProblem

_HOPE = 0.5
"""A search without any plan ends after this share of its time."""
_PRESOLVED = 5000
"""Above this number of columns, a MIP is not presolved: the time of presolve grows with the square
of the number of columns, and HiGHS does not keep its time limit during presolve."""
_RELAXED_PER_S = 200_000
"""HiGHS reads and presolves fewer columns of a relaxation than this in a second, and does not keep
its time limit while it does so."""
_PROVEN = (
    highspy.HighsModelStatus.kOptimal,
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
    highspy.HighsModelStatus.kModelEmpty,
)
_LIMITS = {
    highspy.HighsModelStatus.kTimeLimit: "wall_clock",
    highspy.HighsModelStatus.kInterrupt: "wall_clock",  # interrupted after `hope_s`
}


@dataclass(frozen=True, slots=True)
class ExactResult:
    """Counts (None: no plan found) and the proven bound of the objective.

    `limit`: the limit that ended the search before a proof; empty if the search ended by proof,
    which may prove that no plan exists. `nodes`: number of nodes of the search tree.
    """

    counts: Ints | None
    bound: float
    limit: str
    nodes: int

    @property
    def solved(self) -> bool:
        """Whether the search ended by proof."""
        return not self.limit


def minimise_cost(
    problem: AllocationProblem,
    target: Floats,
    nodes: int,
    seconds: float,
    gap: float,
    start: Ints | None = None,
) -> ExactResult:
    """Counts of least cost that serve the fraction `target` (m,) of each row. `start` (n,): counts
    with which the search begins."""
    lp = cost_program(problem, target)
    return _run(lp, problem, nodes, seconds, gap, start, hope_s=_HOPE * seconds)


def any_plan_by_milp(
    problem: AllocationProblem, target: Floats, nodes: int, seconds: float
) -> ExactResult:
    """A plan that serves the fraction `target` (m,) of each row, at any cost. Its counts are None
    if that is proven impossible or a limit ended the search.

    The cost is still the objective, because a search without an objective takes several times as
    long.
    """
    return _run(cost_program(problem, target), problem, nodes, seconds, plans=1)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """The LP relaxation: its value, the reduced costs (n,) and the fractional counts (n,)."""

    value: float
    reduced: Floats
    counts: Floats


def fraction_relaxed(
    problem: AllocationProblem, active: Bools, fixed: Floats, seconds: float
) -> Relaxed | None:
    """The relaxation of the largest t <= 1 with which a plan serves the fraction t of the `active`
    (m,) rows and the fraction `fixed` (m,) of the other rows. Its value is -t. None if it is not
    solved within `seconds`."""
    return _relaxation(fraction_program(problem, active, fixed), problem.columns, seconds)


def relaxed(problem: AllocationProblem, target: Floats, seconds: float) -> Relaxed | None:
    """The LP relaxation of the least cost; None if it is not solved within `seconds` or has no
    solution."""
    return _relaxation(cost_program(problem, target), problem.columns, seconds)


def _relaxation(lp: highspy.HighsLp, columns: int, seconds: float) -> Relaxed | None:
    lp.integrality_ = []
    if columns > _RELAXED_PER_S * seconds:
        return None
    solver = mip_solver(0, seconds, 0.0)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    value, found = float(solver.getInfo().objective_function_value), solver.getSolution()
    reduced, counts = np.asarray(found.col_dual), np.asarray(found.col_value)
    return Relaxed(value, reduced[:columns], counts[:columns])


def cost_program(problem: AllocationProblem, target: Floats) -> highspy.HighsLp:
    """The MIP of the least cost at which each row gets the fraction `target` (m,)."""
    lp = _columns(problem, extra=0)
    lp.col_cost_ = problem.cost_usd_per_h.astype(np.float64)
    lp.row_lower_ = np.concatenate([target, np.full(len(problem.capacity), -highspy.kHighsInf)])
    return lp


def fraction_program(problem: AllocationProblem, active: Bools, fixed: Floats) -> highspy.HighsLp:
    """The MIP of the largest t <= 1, as a minimisation of -t in the last column: the `active` (m,)
    rows get the fraction t, and the other rows the fraction `fixed` (m,)."""
    lp = _columns(problem, extra=1)
    n = problem.columns
    lp.col_cost_ = np.concatenate([np.zeros(n), [-1.0]])
    lower = np.where(active, 0.0, fixed)
    lp.row_lower_ = np.concatenate([lower, np.full(len(problem.capacity), -highspy.kHighsInf)])
    rows = np.flatnonzero(active).astype(np.int32)
    start = np.asarray(lp.a_matrix_.start_)
    lp.a_matrix_.start_ = np.concatenate([start, [start[-1] + len(rows)]]).astype(np.int32)
    lp.a_matrix_.index_ = np.concatenate([lp.a_matrix_.index_, rows]).astype(np.int32)
    lp.a_matrix_.value_ = np.concatenate([lp.a_matrix_.value_, np.full(len(rows), -1.0)])
    return lp


def _columns(problem: AllocationProblem, extra: int) -> highspy.HighsLp:
    """The constraint matrix: demand rows (served share), then resource rows."""
    n, m, k = problem.columns, len(problem.demand_req_per_s), len(problem.capacity)
    serves = np.repeat(np.arange(n), np.diff(problem.serve_indptr))
    uses = np.repeat(np.arange(n), np.diff(problem.use_indptr))
    column = np.concatenate([serves, uses])
    row = np.concatenate([problem.serve_row, m + problem.use_resource])
    share = problem.serve_rate / problem.demand_req_per_s[problem.serve_row]
    value = np.concatenate([share, problem.use_amount])
    order = np.lexsort((row, column))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n + extra, m + k
    lp.col_lower_ = np.zeros(n + extra)
    lp.col_upper_ = np.concatenate([_upper(problem), np.ones(extra)])
    lp.row_upper_ = np.concatenate([np.full(m, highspy.kHighsInf), problem.capacity])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.searchsorted(column[order], np.arange(n + 1)).astype(np.int32)
    lp.a_matrix_.index_ = row[order].astype(np.int32)
    lp.a_matrix_.value_ = value[order].astype(np.float64)
    whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
    lp.integrality_ = [whole] * n + [real] * extra
    return lp


def _upper(problem: AllocationProblem) -> Floats:
    """Upper bounds of the columns. A plan of least cost uses a column at most as often as it would
    need to serve all demand by this column alone. Columns that provide a resource get no such
    bound, because their number depends on other columns.
    """
    upper = problem.upper.astype(np.float64).copy()
    alone = np.full(problem.columns, 0.0)
    serves = np.repeat(np.arange(problem.columns), np.diff(problem.serve_indptr))
    needed = np.ceil(
        problem.demand_req_per_s[problem.serve_row] * (1.0 + 1e-6) / problem.serve_rate
    )
    np.maximum.at(alone, serves, needed)
    uses = np.repeat(np.arange(problem.columns), np.diff(problem.use_indptr))
    alone[uses[problem.use_amount < 0]] = 0.0
    return np.where(alone > 0, np.minimum(upper, alone), upper)


def _run(
    lp: highspy.HighsLp,
    problem: AllocationProblem,
    nodes: int,
    seconds: float,
    gap: float = 0.0,
    start: Ints | None = None,
    hope_s: float = math.inf,
    plans: int = 0,
) -> ExactResult:
    """Solve the MIP.

    hope_s: a search without any plan ends after this time, which leaves the rest to the best
    effort. plans: the search ends after this number of improvements (0: no limit).
    """
    solver = mip_solver(nodes, seconds, gap)
    if problem.columns > _PRESOLVED:
        solver.setOptionValue("presolve", "off")
    if plans:
        solver.setOptionValue("mip_max_improving_sols", plans)
    solver.passModel(lp)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = [float(x) for x in start]
        solver.setSolution(solution)
    if math.isfinite(hope_s):
        solver.cbMipInterrupt.subscribe(lambda event: _give_up(event, hope_s))
    solver.run()
    info, status = solver.getInfo(), solver.getModelStatus()
    limit = "" if status in _PROVEN else _LIMITS.get(status, "mip_nodes")
    spent = max(0, int(info.mip_node_count))
    bound = float(info.mip_dual_bound)
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return ExactResult(None, bound, limit, spent)
    x = np.asarray(solver.getSolution().col_value)[: problem.columns]
    return ExactResult(np.round(x).astype(np.int64), bound, limit, spent)


def _give_up(event: Any, hope_s: float) -> None:
    """Callback of HiGHS: interrupts a search that has no plan after `hope_s` seconds."""
    seen = event.data_out
    if seen.running_time > hope_s and not seen.mip_primal_bound < math.inf:
        event.interrupt()


def mip_solver(nodes: int, seconds: float, gap: float) -> highspy.Highs:
    """A silent HiGHS with explicit limits: one thread, fixed seed, node limit, watchdog seconds."""
    solver = highspy.Highs()
    for name, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 1),
        ("mip_max_nodes", int(nodes)),
        ("mip_rel_gap", float(gap)),
        ("mip_feasibility_tolerance", 1e-9),
        ("primal_feasibility_tolerance", 1e-9),
        # Off, because it would take far longer than the presolve and root node of small problems.
        ("mip_heuristic_run_feasibility_jump", False),
    ):
        solver.setOptionValue(name, value)
    if math.isfinite(seconds):
        solver.setOptionValue("time_limit", max(0.0, float(seconds)))
    return solver
