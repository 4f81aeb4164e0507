"""Selects the columns of a MIP if a problem has too many. The reduced costs of the LP relaxation
determine the selection, and tell whether an optimum over it is an optimum over all columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.components import only
from autoscaler.optimizer.milp import Relaxed, relaxed
from autoscaler.optimizer.problem import AllocationProblem

MIP_COLUMNS = 50_000
"""Largest number of columns of a MIP. A larger MIP spends too long at its root node. A plan over
selected columns only has the bound of the relaxation, which is far weaker than that of a MIP over
all columns."""


@dataclass(frozen=True, slots=True)
class Selection:
    """`problem` over the columns `ids`; `columns` is the number of all columns. `cutoff`: no plan
    that costs less than this uses a column that was left out (reduced-cost fixing)."""

    problem: AllocationProblem
    ids: Ints
    columns: int
    cutoff: float

    @property
    def whole(self) -> bool:
        """Whether no column was left out."""
        return len(self.ids) == self.columns

    def holds_all_within(self, cost: float) -> bool:
        """Whether every plan that costs less than `cost` uses only the selected columns."""
        return self.whole or cost <= self.cutoff

    def spread(self, counts: Ints) -> Ints:
        """`counts` of the selected columns as counts of all columns."""
        spread = np.zeros(self.columns, dtype=np.int64)
        spread[self.ids] = counts
        return spread


def select(
    problem: AllocationProblem,
    target: Floats,
    most: int,
    keep: Ints | None,
    seconds: float = math.inf,
) -> tuple[Selection, float | None]:
    """The selected columns, at most `most`, and the value of the LP relaxation, if it is solved
    within `seconds`; the value is a lower bound of the cost.

    Columns with a positive count in `keep` come first, then the columns of least reduced cost.
    """
    got = relaxed(problem, target, seconds)
    return by_relaxation(problem, got, most, keep), None if got is None else got.value


def by_relaxation(
    problem: AllocationProblem, got: Relaxed | None, most: int, keep: Ints | None
) -> Selection:
    """Select columns by the reduced costs of the relaxation `got` (with any objective), or by cost
    if it is None. Of columns with equal reduced cost, the ones with a positive count in the
    relaxation come first, then the cheapest."""
    everything = np.arange(problem.columns)
    if problem.columns <= most:
        return Selection(problem, everything, problem.columns, np.inf)
    reduced = problem.cost_usd_per_h if got is None else np.maximum(0.0, got.reduced)
    rank = reduced.astype(np.float64).copy()
    if got is not None:
        rank[got.counts > 0.0] = 0.0
    if keep is not None:
        rank[keep > 0] = -1.0
    unused = np.zeros(problem.columns) if got is None else got.counts <= 0.0
    ids = np.sort(np.lexsort((problem.cost_usd_per_h, unused, rank))[:most])
    left_out = np.setdiff1d(everything, ids)
    cutoff = 0.0 if got is None else got.value + float(reduced[left_out].min())
    return Selection(only(problem, ids), ids, problem.columns, cutoff)
