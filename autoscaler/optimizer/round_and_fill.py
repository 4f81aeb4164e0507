"""Makes a plan without a search: the fractional counts of a relaxation are rounded so that they
fit, then columns that still fit are added. The plan has no bound.
"""

from __future__ import annotations

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.problem import AllocationProblem

_SHARES = np.linspace(1.0, 0.0, 21)
_AT_ONCE = 8
"""In one step, a row gets at most 1 / _AT_ONCE of its missing columns. So many small columns take
few steps, and no row uses up the whole capacity."""


def rounded(problem: AllocationProblem, parts: Floats) -> Ints:
    """Whole counts (n,) near the fractional counts `parts` (n,).

    Columns that use resources are rounded down, and columns that provide resources are rounded up.
    `parts` is first scaled by a factor: the largest of a few factors with which the result fits.
    """
    uses = np.repeat(np.arange(problem.columns), np.diff(problem.use_indptr))
    provides = np.zeros(problem.columns, dtype=np.bool_)
    provides[uses[problem.use_amount < 0]] = True
    counts: Ints = np.zeros(problem.columns, dtype=np.int64)
    for share in _SHARES:
        up, down = np.ceil(share * parts - 1e-9), np.floor(share * parts + 1e-9)
        counts = np.minimum(np.where(provides, up, down), problem.upper).astype(np.int64)
        if (problem.used(counts) <= problem.capacity).all():
            break
    return counts


def filled(problem: AllocationProblem, counts: Ints, rows: Ints, target: Floats) -> Ints:
    """`counts` (n,) with further columns, as long as they fit.

    In each step, the row of `rows` that lacks the largest share of its demand gets a column. It is
    the column that fits and serves most of the missing demand per cost. The loop ends when each row
    has its fraction `target` (m,) of the demand, or no column fits.
    """
    counts = counts.copy()
    left = problem.capacity - problem.used(counts)
    missing = problem.demand_req_per_s * target - problem.served_req_per_s(counts)
    serves = np.repeat(np.arange(problem.columns), np.diff(problem.serve_indptr))
    able = np.zeros(len(missing), dtype=np.bool_)
    able[rows] = True
    by_row = np.argsort(problem.serve_row, kind="stable")
    ends = np.searchsorted(problem.serve_row[by_row], np.arange(len(missing) + 1))
    entries = {int(row): by_row[ends[row] : ends[row + 1]] for row in rows}
    while (able & (missing > 0.0)).any():
        row = int(np.argmax(np.where(able, missing / problem.demand_req_per_s, -np.inf)))
        at = entries[row] = entries[row][_fits(problem, serves[entries[row]], counts, left)]
        if not len(at):
            able[row] = False
            continue
        cost = np.maximum(problem.cost_usd_per_h[serves[at]], 1e-9)
        best = at[np.argmax(np.minimum(problem.serve_rate[at], missing[row]) / cost)]
        column = int(serves[best])
        used = slice(problem.use_indptr[column], problem.use_indptr[column + 1])
        need = np.maximum(problem.use_amount[used], 1e-12)
        room = min(
            missing[row] / problem.serve_rate[best],
            problem.upper[column] - counts[column],
            float((left[problem.use_resource[used]] / need).min(initial=np.inf)),
        )
        many = max(1, int(room / _AT_ONCE))
        counts[column] += many
        left[problem.use_resource[used]] -= many * problem.use_amount[used]
        served = slice(problem.serve_indptr[column], problem.serve_indptr[column + 1])
        missing[problem.serve_row[served]] -= many * problem.serve_rate[served]
    return counts


def _fits(problem: AllocationProblem, ids: Ints, counts: Ints, left: Floats) -> Bools:
    """The columns in `ids` that fit at least once into the remaining capacity `left` (k,)."""
    first, many = problem.use_indptr[ids], np.diff(problem.use_indptr)[ids]
    of = np.repeat(np.arange(len(ids)), many)
    at = np.arange(len(of)) + np.repeat(first - np.cumsum(many) + many, many)
    use = problem.use_amount[at]
    over = (use > 0.0) & (use > left[problem.use_resource[at]])
    short = np.bincount(of[over], minlength=len(ids)) > 0
    fits: Bools = ~short & (counts[ids] + 1 <= problem.upper[ids])
    return fits
