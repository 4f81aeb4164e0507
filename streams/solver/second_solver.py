"""A second solver for the programs that HiGHS solves: CBC, called through PuLP.

It takes the very matrix that HiGHS gets and returns a bound, a solution, or both. CBC runs in a
process of its own and ends at its time limit. This module knows nothing about plans.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import highspy
import numpy as np
import pulp

from autoscaler.optimizer.array_types import Floats

MOST_ENTRIES = 300_000
"""CBC does not get a program with more entries: PuLP would build and write it for a minute."""
TOLERANCE = 1e-6
"""Largest relative difference of two figures, or violation of a row, that counts as rounding."""
_EXACT = ("primalTolerance 1e-9", "integerTolerance 1e-9", "randomSeed 1", "randomCbcSeed 1")


class Outcome(StrEnum):
    """How the second solver ended."""

    OPTIMAL = "optimal"  # the objective is proven
    INFEASIBLE = "infeasible"  # proven: no solution exists
    TIME_LIMIT = "time_limit"  # there is a bound, a solution, both, or neither
    TOO_LARGE = "too_large"  # not solved: more than MOST_ENTRIES entries
    FAILED = "failed"  # the solver is missing, crashed, or broke a row of the program


@dataclass(frozen=True, slots=True)
class Answer:
    """The second solver's answer to a minimisation. objective: of its best solution, recomputed
    from the rounded values; None: it found none. bound: no solution has a smaller objective; None:
    unknown."""

    outcome: Outcome
    objective: float | None = None
    bound: float | None = None


def is_available() -> bool:
    """Whether PuLP has a CBC for this machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bool(pulp.PULP_CBC_CMD(msg=False).available())


def solved_again(lp: highspy.HighsLp, seconds: float) -> Answer:
    """Minimise `lp` with CBC: first its relaxation, for a bound that holds even if the integer
    search does not end, then `lp` itself. Each of the two may take `seconds` of CPU time."""
    if len(lp.a_matrix_.value_) > MOST_ENTRIES:
        return Answer(Outcome.TOO_LARGE)
    with warnings.catch_warnings():  # PuLP 3 announces version 4 at each call.
        warnings.simplefilter("ignore", DeprecationWarning)
        model, variables = _pulp_program(lp)
        try:
            relaxed = _run(model, seconds, integers=False)
            bound = _objective(lp, _values(variables)) if relaxed is Outcome.OPTIMAL else None
            if relaxed is Outcome.INFEASIBLE:
                return Answer(relaxed)
            ended = _run(model, seconds, integers=True)
        except pulp.PulpSolverError:
            return Answer(Outcome.FAILED)
        if ended is Outcome.INFEASIBLE:
            return Answer(ended)
        if model.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
            return Answer(ended, bound=bound)
        values = rounded(lp, _values(variables))
    if broken_row(lp, values) is not None:
        return Answer(Outcome.FAILED, bound=bound)
    objective = _objective(lp, values)
    return Answer(ended, objective, objective if ended is Outcome.OPTIMAL else bound)


def rounded(lp: highspy.HighsLp, values: Floats) -> Floats:
    """`values` (n,) with whole numbers in the integer columns of `lp`."""
    whole = np.array([kind == highspy.HighsVarType.kInteger for kind in lp.integrality_], bool)
    return np.where(whole, np.round(values), values) if len(whole) else values


def broken_row(lp: highspy.HighsLp, values: Floats) -> int | None:
    """The first row or, after the rows, column of `lp` that `values` (n,) violate; None: all hold.
    Computed in plain arithmetic, one entry after the other."""
    sums, sizes = [0.0] * lp.num_row_, [1.0] * lp.num_row_
    for row, column, entry in _entries(lp):
        part = entry * float(values[column])
        sums[row] += part
        sizes[row] = max(sizes[row], abs(part))
    limits = [*zip(lp.row_lower_, lp.row_upper_, strict=True)]
    limits += zip(lp.col_lower_, lp.col_upper_, strict=True)
    sums += map(float, values)
    sizes += [max(1.0, abs(float(value))) for value in values]
    for index, (low, high) in enumerate(limits):
        room = TOLERANCE * sizes[index]
        if not low - room <= sums[index] <= high + room:
            return index
    return None


def _objective(lp: highspy.HighsLp, values: Floats) -> float:
    return math.fsum(float(c) * float(v) for c, v in zip(lp.col_cost_, values, strict=True))


def _values(variables: list[Any]) -> Floats:
    return np.array([variable.value() or 0.0 for variable in variables])


def _entries(lp: highspy.HighsLp) -> Iterator[tuple[int, int, float]]:
    """(row, column, value) of every entry."""
    matrix = lp.a_matrix_
    start, index, value = (np.asarray(a) for a in (matrix.start_, matrix.index_, matrix.value_))
    by_row = matrix.format_ == highspy.MatrixFormat.kRowwise
    major = np.repeat(np.arange(len(start) - 1), np.diff(start))
    rows, columns = (major, index) if by_row else (index, major)
    return zip(rows.tolist(), columns.tolist(), value.tolist(), strict=True)


def _pulp_program(lp: highspy.HighsLp) -> tuple[pulp.LpProblem, list[Any]]:
    model = pulp.LpProblem("second_opinion", pulp.LpMinimize)
    kinds = lp.integrality_ or [highspy.HighsVarType.kContinuous] * lp.num_col_
    variables = [
        model.add_variable(
            f"x{column}",
            float(low),
            float(high) if math.isfinite(high) else None,
            cat="Integer" if kind == highspy.HighsVarType.kInteger else "Continuous",
        )
        for column, (low, high, kind) in enumerate(
            zip(lp.col_lower_, lp.col_upper_, kinds, strict=True)
        )
    ]
    model.setObjective(
        pulp.LpAffineExpression(zip(variables, map(float, lp.col_cost_), strict=True))
    )
    rows: list[list[tuple[Any, float]]] = [[] for _ in range(lp.num_row_)]
    for row, column, entry in _entries(lp):
        rows[row].append((variables[column], entry))
    for entries, low, high in zip(rows, lp.row_lower_, lp.row_upper_, strict=True):
        left = pulp.LpAffineExpression(entries)
        if low == high:
            model += left == float(low)
            continue
        if math.isfinite(low):
            model += left >= float(low)
        if math.isfinite(high):
            model += left <= float(high)
    return model, variables


def _run(model: pulp.LpProblem, seconds: float, integers: bool) -> Outcome:
    """Solve `model` with CBC on one thread, with a fixed seed and without a gap."""
    solver = pulp.PULP_CBC_CMD(
        mip=integers,
        msg=False,
        threads=1,
        gapRel=0.0,
        timeLimit=seconds,
        timeMode="cpu",
        options=list(_EXACT),
    )
    model.solve(solver)
    if model.sol_status == pulp.LpSolutionOptimal:
        return Outcome.OPTIMAL
    infeasible = model.status == pulp.LpStatusInfeasible
    return Outcome.INFEASIBLE if infeasible else Outcome.TIME_LIMIT
