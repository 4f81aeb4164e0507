"""Which columns go into a MIP when there are more than it can take.

Owns the choice by the reduced costs of the LP relaxation, and whether the choice loses anything.
Knows nothing of the MIP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.exact import relaxed
from autoscaler.optimizer.problem import AllocationProblem


@dataclass(frozen=True, slots=True)
class Selection:
    """The problem over the columns `ids`, of `columns` in all. `cutoff`: no plan that costs less
    than this holds a column that was left out (reduced-cost fixing)."""

    problem: AllocationProblem
    ids: Ints
    columns: int
    cutoff: float

    @property
    def whole(self) -> bool:
        """Whether no column was left out."""
        return len(self.ids) == self.columns

    def holds_all_within(self, cost: float) -> bool:
        """Whether every plan cheaper than `cost` is a plan over these columns."""
        return self.whole or cost <= self.cutoff

    def spread(self, counts: Ints) -> Ints:
        """Counts of the chosen columns as counts of all columns."""
        spread = np.zeros(self.columns, dtype=np.int64)
        spread[self.ids] = counts
        return spread


def select(
    problem: AllocationProblem, target: Floats, most: int, keep: Ints | None
) -> tuple[Selection, float | None]:
    """At most `most` columns: those that `keep` counts and those of the least reduced cost; and the
    value of the LP relaxation (a lower bound)."""
    got = relaxed(problem, target)
    lower = None if got is None else got[0]
    everything = np.arange(problem.columns)
    if problem.columns <= most:
        return Selection(problem, everything, problem.columns, np.inf), lower
    reduced = problem.cost_usd_per_h if got is None else np.maximum(0.0, got[1])
    rank = reduced.astype(np.float64).copy()
    if keep is not None:
        rank[keep > 0] = -1.0
    ids = np.sort(np.argsort(rank, kind="stable")[:most])
    left_out = np.setdiff1d(everything, ids)
    cutoff = 0.0 if got is None else got[0] + float(reduced[left_out].min())
    return Selection(_only(problem, ids), ids, problem.columns, cutoff), lower


def _only(problem: AllocationProblem, ids: Ints) -> AllocationProblem:
    """The problem with only the columns `ids`."""
    serve_at, serve_indptr = _entries(problem.serve_indptr, ids)
    use_at, use_indptr = _entries(problem.use_indptr, ids)
    return replace(
        problem,
        cost_usd_per_h=problem.cost_usd_per_h[ids],
        upper=problem.upper[ids],
        serve_indptr=serve_indptr,
        serve_row=problem.serve_row[serve_at],
        serve_rate=problem.serve_rate[serve_at],
        use_indptr=use_indptr,
        use_resource=problem.use_resource[use_at],
        use_amount=problem.use_amount[use_at],
    )


def _entries(indptr: Ints, ids: Ints) -> tuple[Ints, Ints]:
    length = np.diff(indptr)[ids]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(indptr[ids] - offsets[:-1], length) + np.arange(offsets[-1])
    return at, offsets
