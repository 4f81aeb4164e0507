"""Parts of a problem that have nothing to do with each other, and their results as one.

Models that share no pool, no budget and no promise are planned one after the other: the parts
together are as good as the whole, their bounds add up, and each search is far smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Ints
from autoscaler.optimizer.problem import AllocationProblem


@dataclass(frozen=True, slots=True)
class Part:
    """A problem over the columns `ids` and the demand rows `rows` of another one."""

    problem: AllocationProblem
    ids: Ints
    rows: Ints


def only(problem: AllocationProblem, ids: Ints) -> AllocationProblem:
    """The problem with only the columns `ids`, and all rows."""
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


def parts(problem: AllocationProblem) -> tuple[Part, ...]:
    """The parts that demand anything, the smallest first; columns of no part count nothing.

    Two columns are of one part if they serve, or use, the same row.
    """
    demands, n = len(problem.demand_req_per_s), problem.columns
    column = np.concatenate([_columns(problem.serve_indptr), _columns(problem.use_indptr)])
    row = np.concatenate([problem.serve_row, problem.use_resource + demands])
    of_column, of_row = _joined(column, row, n, demands + len(problem.capacity))
    found = []
    for part in np.unique(of_row[:demands]):
        ids, rows = np.flatnonzero(of_column == part), np.flatnonzero(of_row[:demands] == part)
        resources = np.flatnonzero(of_row[demands:] == part)
        mine = only(problem, ids)
        small = replace(
            mine,
            serve_row=np.searchsorted(rows, mine.serve_row),
            use_resource=np.searchsorted(resources, mine.use_resource),
            demand_req_per_s=problem.demand_req_per_s[rows],
            priority=problem.priority[rows],
            capacity=problem.capacity[resources],
            follows=tuple(
                replace(one, row=int(rows.searchsorted(one.row)), of=int(rows.searchsorted(one.of)))
                for one in problem.follows
                if one.row in rows and one.of in rows
            ),
        )
        found.append(Part(small, ids, rows))
    return tuple(sorted(found, key=lambda part: len(part.ids)))


def _joined(column: Ints, row: Ints, columns: int, rows: int) -> tuple[Ints, Ints]:
    """The part of every column and row: the smallest row that entries lead to; -1 without any."""
    of_row = np.arange(rows)
    while True:
        of_column = np.full(columns, rows)
        np.minimum.at(of_column, column, of_row[row])
        least = of_row.copy()
        np.minimum.at(least, row, of_column[column])
        least = least[least]  # where that row belongs by now
        if np.array_equal(least, of_row):
            return np.where(of_column < rows, of_column, -1), of_row
        of_row = least


def _columns(indptr: Ints) -> Ints:
    """The column of every entry."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def _entries(indptr: Ints, ids: Ints) -> tuple[Ints, Ints]:
    length = np.diff(indptr)[ids]
    offsets = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    at = np.repeat(indptr[ids] - offsets[:-1], length) + np.arange(offsets[-1])
    return at, offsets
