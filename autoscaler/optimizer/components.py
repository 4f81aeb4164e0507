"""Independent parts of a problem, which are solved separately.

Models that share no pool, no budget and no constraint are planned separately: the union of the
plans is as good as a plan of the whole problem, the bounds add up, and each search is far smaller.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.problem import AllocationProblem, entries_of


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a larger problem: `problem` has only the columns `ids` and the demand rows `rows`
    of it."""

    problem: AllocationProblem
    ids: Ints
    rows: Ints


def only(problem: AllocationProblem, ids: Ints) -> AllocationProblem:
    """`problem` with all rows, but only the columns `ids`."""
    serve_at, serve_indptr = entries_of(problem.serve_indptr, ids)
    use_at, use_indptr = entries_of(problem.use_indptr, ids)
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
    """The parts with a demand, the smallest first; columns outside all parts have the count 0.

    Two columns belong to the same part if they serve the same row or use the same resource.
    """
    demands = len(problem.demand_req_per_s)
    of_column, of_row = _components(problem)
    found = []
    labels = np.unique(of_row[:demands])
    if len(labels) == 1 and (of_column == labels[0]).all() and (of_row == labels[0]).all():
        return (Part(problem, np.arange(problem.columns), np.arange(demands)),)
    for part in labels:
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


def _components(problem: AllocationProblem) -> tuple[Ints, Ints]:
    """The number of the component of every column (-1 without entries) and of every row: demand
    rows, then resource rows."""
    demands = len(problem.demand_req_per_s)
    rows = demands + len(problem.capacity)
    serves, uses = np.diff(problem.serve_indptr), np.diff(problem.use_indptr)
    first = np.full(problem.columns, -1, dtype=np.int64)
    some = uses > 0
    first[some] = demands + problem.use_resource[problem.use_indptr[:-1][some]]
    some = serves > 0
    first[some] = problem.serve_row[problem.serve_indptr[:-1][some]]
    links = np.concatenate(
        [
            np.repeat(first, serves) * rows + problem.serve_row,
            np.repeat(first, uses) * rows + demands + problem.use_resource,
        ]
    )
    of_row = _joined(*np.divmod(_distinct(links, rows * rows), rows), rows)
    return np.where(first >= 0, of_row[first], -1), of_row


_FEW_LINKS = 4_000_000


def _distinct(values: Ints, limit: int) -> Ints:
    """The distinct numbers in `values`, which are all below `limit`."""
    if limit <= _FEW_LINKS:
        seen = np.zeros(limit, dtype=np.bool_)
        seen[values] = True
        return np.flatnonzero(seen)
    return np.unique(values)


def _joined(one: Ints, other: Ints, rows: int) -> Ints:
    """The component of each row (0 to `rows` - 1), identified by its smallest row. one, other: the
    two rows of each link."""
    of_row = np.arange(rows)
    while True:
        least = of_row.copy()
        np.minimum.at(least, one, of_row[other])
        np.minimum.at(least, other, of_row[one])
        least = least[least]
        if np.array_equal(least, of_row):
            return of_row
        of_row = least
