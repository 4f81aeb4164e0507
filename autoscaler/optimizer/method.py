"""Choice of the search method by the structure of a problem: one MIP, or the decomposition into
covers.

Both methods find the cheapest plan, any plan, and the largest fraction of the demand that can be
served.
"""

from __future__ import annotations

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.covers import (
    any_plan_by_covers,
    cheapest_by_covers,
    fraction_bound_by_covers,
    is_decomposed,
)
from autoscaler.optimizer.milp import (
    ExactResult,
    Relaxed,
    any_plan_by_milp,
    fraction_relaxed,
    minimise_cost,
    relaxed,
)
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import Limits
from autoscaler.optimizer.selection import MIP_COLUMNS, by_relaxation, select


def cheapest(
    problem: AllocationProblem, target: Floats, limits: Limits, start: Ints | None
) -> tuple[Ints | None, float, tuple[str, ...]]:
    """Counts of least cost that serve the fraction `target` (m,) of each row (None: none found),
    their bound, and the limits that ended the search. `start` (n,): counts with which the search
    begins."""
    if limits.is_over():
        return None, 0.0, ("wall_clock",)
    if is_decomposed(problem):
        return cheapest_by_covers(problem, target, limits, start)
    lower: float | None = None
    if problem.columns > MIP_COLUMNS:
        chosen, lower = select(problem, target, MIP_COLUMNS, start, limits.left_s())
    else:
        chosen = by_relaxation(problem, None, MIP_COLUMNS, start)
    got = minimise_cost(
        chosen.problem,
        target,
        nodes=limits.mip_nodes,
        seconds=limits.left_s(),
        gap=limits.gap,
        start=None if start is None else start[chosen.ids],
    )
    hit = (got.limit,) if got.limit else ()
    if got.limit and lower is None and (relaxation := relaxed(problem, target, limits.left_s())):
        # the search ended without a proof, so only the relaxation's bound holds
        lower = relaxation.value
    if got.counts is None:
        return None, lower or 0.0, hit
    counts = chosen.spread(got.counts)
    cost = float(counts @ problem.cost_usd_per_h)
    bound = max(0.0, got.bound) if chosen.holds_all_within(cost) else 0.0
    bound = min(cost, max(bound, lower or 0.0))
    limits.step("MIP", problem.columns, len(chosen.ids), bound, cost)
    return counts, bound, hit


def any_plan(
    problem: AllocationProblem, target: Floats, limits: Limits, share: float
) -> ExactResult:
    """A plan that serves the fraction `target` (m,) of each row, at any cost, found with this
    `share` of the time and of the search nodes. Its counts are None if that is proven impossible or
    a limit ended the search."""
    if is_decomposed(problem):
        return any_plan_by_covers(problem, target, limits.within(share))
    nodes = max(1, int(limits.mip_nodes * share))
    return any_plan_by_milp(problem, target, nodes, limits.left_s() * share)


def most_fraction(
    problem: AllocationProblem, active: Bools, fixed: Floats, limits: Limits
) -> tuple[Relaxed | None, float]:
    """(LP relaxation, bound on t), where t <= 1 is the largest fraction of the `active` (m,) rows
    that a plan can serve in addition to the fraction `fixed` (m,) of the other rows. The value of
    the relaxation is -t; the relaxation is None if it takes too long."""
    bound = 1.0
    if is_decomposed(problem):
        bound = fraction_bound_by_covers(problem, active, fixed, limits)
        if problem.columns > MIP_COLUMNS:
            return None, bound
    got = fraction_relaxed(problem, active, fixed, limits.left_s())
    return got, bound if got is None else min(bound, -got.value)
