"""One function for every allocation problem: `solve`.

Owns the choice of the tier and what follows when demand cannot be met. Small or unstructured
problems go to one exact MIP; large ones with a row per column go through the decomposition. Knows
nothing of models, regions or fleets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.best_effort import largest_fraction
from autoscaler.optimizer.check import checked, failed
from autoscaler.optimizer.column_form import (
    counts_of,
    is_structured,
    lower_columns,
    plan_from_counts,
)
from autoscaler.optimizer.decomposition import solve_decomposed
from autoscaler.optimizer.exact import maximise_fraction, minimise_cost
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import (
    AllocationResult,
    SolveOptions,
    Work,
)
from autoscaler.optimizer.selection import select

SMALL = 300
"""Up to this many columns a structured problem goes to the exact MIP first."""
MIP_COLUMNS = 10_000
"""No MIP is built over more columns."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Counts (None: no plan) and the bound that came with them."""

    counts: Ints | None
    bound: float
    limits: tuple[str, ...]
    work: Work


def solve(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> AllocationResult:
    """Cheapest counts that serve all demand, with a proven bound; best effort where that cannot be.

    start (n,): counts of a plan that may be good already.
    Deterministic under the work limits of `options`. Every returned plan was checked anew in
    floating point; one that fails the check comes back as FAILED, never as a plan.
    """
    rows = len(problem.demand_req_per_s)
    whole = np.ones(rows)
    found = _cheapest(problem, whole, options, start)
    if found.counts is not None:
        return checked(
            problem, found.counts, found.bound, whole, whole, options, found.limits, found.work
        )
    target, bound, counts, limits, work = _fractions(problem, options)
    limits, work = (*found.limits, *limits), found.work + work
    if counts is None:
        return failed(problem, "no plan was found within the limits", limits, work)
    if not target.any():
        return checked(problem, counts, 0.0, target, bound, options, limits, work)
    again = _cheapest(problem, target, options, counts)
    limits, work = (*limits, *again.limits), work + again.work
    if again.counts is None:  # the limit struck, but a plan at these fractions is at hand
        again = replace(again, counts=counts, bound=0.0)
    plan = counts if again.counts is None else again.counts
    return checked(problem, plan, again.bound, target, bound, options, limits, work)


def _cheapest(
    problem: AllocationProblem, target: Floats, options: SolveOptions, start: Ints | None
) -> _Found:
    """Least cost at `target` (m,) shares of demand, by whichever tier suits."""
    structured = is_structured(problem)
    if structured and problem.columns > SMALL:
        return _by_groups(problem, target, options, start)
    found = _by_mip(problem, target, options, start)
    if structured and found.limits:
        other = _by_groups(problem, target, options, start)
        found = _better(problem, found, other)
    return found


def _better(problem: AllocationProblem, first: _Found, second: _Found) -> _Found:
    """The cheaper plan with the larger bound of two searches of the same problem."""
    work, bound = first.work + second.work, max(first.bound, second.bound)
    if second.counts is None:
        return replace(first, bound=bound, work=work)
    if first.counts is None:
        return replace(second, bound=bound, work=work)
    costs = [
        float(f.counts @ problem.cost_usd_per_h) for f in (first, second) if f.counts is not None
    ]
    chosen = first if costs[0] <= costs[1] else second
    return replace(chosen, bound=bound, work=work)


def _by_mip(
    problem: AllocationProblem, target: Floats, options: SolveOptions, start: Ints | None
) -> _Found:
    chosen, lower = select(problem, target, MIP_COLUMNS, start)
    got = minimise_cost(
        chosen.problem,
        target,
        nodes=50 * options.mip_nodes,
        seconds=options.left_s(),
        gap=options.gap,
        start=None if start is None else start[chosen.ids],
    )
    work = Work(mips=1, mip_nodes=got.nodes)
    limits = () if got.solved else (_which_limit(options),)
    if got.counts is None:
        return _Found(None, 0.0, limits, work)
    counts = np.zeros(problem.columns, dtype=np.int64)
    counts[chosen.ids] = got.counts
    cost = float(counts @ problem.cost_usd_per_h)
    bound = got.bound if chosen.holds_all_within(cost) else 0.0
    if lower is not None:
        bound = max(bound, lower)
    return _Found(counts, bound, limits, work)


def _by_groups(
    problem: AllocationProblem, target: Floats, options: SolveOptions, start: Ints | None
) -> _Found:
    lowered = lower_columns(problem, target)
    given = None if start is None else plan_from_counts(problem, lowered, target, start)
    outcome = solve_decomposed(lowered, options, None, given)
    counts = None
    if outcome.plan is not None:
        counts = counts_of(outcome.plan, problem.columns)
    return _Found(counts, outcome.bound, outcome.limits, outcome.work)


def _fractions(
    problem: AllocationProblem, options: SolveOptions
) -> tuple[Floats, Floats, Ints | None, tuple[str, ...], Work]:
    """Class by class the largest smallest fraction: targets (m,), bounds (m,), counts, limits."""
    rows = len(problem.demand_req_per_s)
    target, bound = np.zeros(rows), np.ones(rows)
    counts: Ints | None = None
    limits: tuple[str, ...] = ()
    work = Work()
    structured = is_structured(problem)
    large = structured and (problem.columns > MIP_COLUMNS or options.out_of_time())
    for level in np.unique(problem.priority):
        active = problem.priority == level
        if large:
            wanted = np.where(active, 1.0, target)
            lowered = lower_columns(problem, wanted)
            part = largest_fraction(lowered, options, active[wanted > 0])
            work, limits = work + part.work, (*limits, *part.limits)
            value, most = part.served, part.bound
            plan = None
            if part.plan is not None:
                plan = counts_of(part.plan, problem.columns)
        else:
            chosen, _ = select(problem, np.where(active, 1.0, target), MIP_COLUMNS, counts)
            # Half of the time: the cheapest plan at these fractions is to be found in the rest.
            seconds = 0.5 * options.left_s()
            got = maximise_fraction(
                chosen.problem, active, target, 50 * options.mip_nodes, seconds, 1e-3
            )
            work += Work(mips=1, mip_nodes=got.nodes)
            limits = limits if got.solved else (*limits, _which_limit(options))
            most = got.bound if chosen.whole and np.isfinite(got.bound) else 1.0
            value, plan = 0.0, None
            if got.counts is not None:
                plan = np.zeros(problem.columns, dtype=np.int64)
                plan[chosen.ids] = got.counts
                served = problem.served_req_per_s(plan) / problem.demand_req_per_s
                value = min(1.0, float(served[active].min()))
        counts = counts if plan is None else plan
        bound[active] = max(most, value)
        # A hair below what is proven to be possible, so that rounding cannot make it impossible.
        target[active] = value if value >= 1.0 else value * (1.0 - 1e-8)
    return target, bound, counts, limits, work


def _which_limit(options: SolveOptions) -> str:
    return "wall_clock" if options.left_s() <= 0.0 else "mip_nodes"
