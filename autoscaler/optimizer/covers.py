"""Plans of problems in cover form, by decomposition: the cheapest plan, or any plan.

The counterpart of `milp` for problems with many columns that each serve one demand row.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.check import faults
from autoscaler.optimizer.decomposition.cover_form import CoverForm, cover_form, has_cover_form
from autoscaler.optimizer.decomposition.dual_ascent import proven_infeasible
from autoscaler.optimizer.decomposition.incumbent import Incumbent
from autoscaler.optimizer.decomposition.search import solve_decomposed
from autoscaler.optimizer.decomposition.work_limits import SearchLimits
from autoscaler.optimizer.milp import ExactResult
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import Limits

COVER_COLUMNS = 1000
"""Problems with fewer columns go to one MIP, which needs milliseconds for them."""
_PRECISION = 1e-3
"""Relative precision of the bound on a fraction."""
_NOTHING = 1e-6
"""Fractions below this count as 0."""
_FOR_BOUND = 0.3
"""Share of the time for the bound on a fraction."""


def is_decomposed(problem: AllocationProblem) -> bool:
    """Whether `problem` is solved by decomposition: it is large enough and has the cover form."""
    return problem.columns >= COVER_COLUMNS and has_cover_form(problem)


def cheapest_by_covers(
    problem: AllocationProblem, target: Floats, limits: Limits, start: Ints | None = None
) -> tuple[Ints | None, float, tuple[str, ...]]:
    """Counts (n,) of least cost that serve the fraction `target` (m,) of each row (None: none
    found), the proven bound, and the limits that ended the search.

    start (n,): counts with which the search begins, if they serve `target`.
    """
    form = cover_form(problem, target)
    got = solve_decomposed(
        form.decomposed, SearchLimits.of(limits), None, _given(form, problem, target, start)
    )
    if got.plan is None:
        return None, got.bound if np.isfinite(got.bound) else 0.0, got.limits
    return form.counts_of(got.plan), max(0.0, got.bound), got.limits


def any_plan_by_covers(problem: AllocationProblem, target: Floats, limits: Limits) -> ExactResult:
    """A plan that serves the fraction `target` (m,) of each row, at any cost. Its counts are None
    if that is proven impossible or a limit ended the search."""
    form = cover_form(problem, target)
    got = solve_decomposed(form.decomposed, SearchLimits.of(replace(limits, gap=1.0)), None)
    if got.plan is not None:
        return ExactResult(form.counts_of(got.plan), got.bound, "", got.work.mip_nodes)
    proven = bool(np.isinf(got.bound))
    limit = "" if proven else next(iter(got.limits), "first_plan")
    return ExactResult(None, got.bound, limit, got.work.mip_nodes)


def fraction_bound_by_covers(
    problem: AllocationProblem, active: Bools, fixed: Floats, limits: Limits
) -> float:
    """A proven upper bound on the fraction of the `active` (m,) rows that a plan can serve, if it
    also serves the fraction `fixed` (m,) of the other rows; 1 without a proof."""
    low, high = 0.0, 1.0
    within = SearchLimits.of(limits.within(_FOR_BOUND))
    middle = 1.0
    while high - low > _PRECISION * high and high > _NOTHING and not within.out_of_time():
        form = cover_form(problem, np.where(active, middle, fixed))
        if proven_infeasible(form.decomposed, within):
            high = middle
        elif middle == 1.0:
            return 1.0
        else:
            low = middle
        middle = 0.5 * (low + high)
    return high


def _given(
    form: CoverForm, problem: AllocationProblem, target: Floats, start: Ints | None
) -> Incumbent | None:
    if start is None or faults(problem, start, target):
        return None
    return form.plan_of(problem, start)
