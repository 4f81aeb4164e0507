"""One function for every allocation problem: `solve`.

Owns what follows when demand cannot be met: class by class the largest smallest fraction, then the
least cost at it. Knows nothing of models, regions or fleets.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.check import checked, failed
from autoscaler.optimizer.exact import maximise_fraction, minimise_cost
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions
from autoscaler.optimizer.selection import select

MIP_COLUMNS = 10_000
"""No MIP is built over more columns."""


@dataclass(frozen=True, slots=True)
class _Found:
    """Counts (None: no plan) and the bound that came with them."""

    counts: Ints | None
    bound: float
    limits: tuple[str, ...]


def solve(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> AllocationResult:
    """Cheapest counts that serve all demand, with a proven bound; best effort where that cannot be.

    start (n,): counts of a plan that may be good already.
    Deterministic under the work limits of `options`. Every returned plan was checked anew in
    floating point; one that fails the check comes back as FAILED, never as a plan.
    """
    whole = np.ones(len(problem.demand_req_per_s))
    found = _cheapest(problem, whole, options, start)
    if found.counts is not None:
        return checked(problem, found.counts, found.bound, whole, whole, options, found.limits)
    target, bound, counts, limits = _fractions(problem, options)
    limits = (*found.limits, *limits)
    if counts is None:
        return failed(problem, "no plan was found within the limits", limits)
    if not target.any():
        return checked(problem, counts, 0.0, target, bound, options, limits)
    again = _cheapest(problem, target, options, counts)
    if again.counts is None:  # the limit struck, but a plan at these fractions is at hand
        again = replace(again, counts=counts, bound=0.0)
    plan = counts if again.counts is None else again.counts
    limits = (*limits, *again.limits)
    return checked(problem, plan, again.bound, target, bound, options, limits)


def _cheapest(
    problem: AllocationProblem, target: Floats, options: SolveOptions, start: Ints | None
) -> _Found:
    """Least cost at `target` (m,) shares of demand."""
    chosen, lower = select(problem, target, MIP_COLUMNS, start)
    got = minimise_cost(
        chosen.problem,
        target,
        nodes=options.mip_nodes,
        seconds=options.left_s(),
        gap=options.gap,
        start=None if start is None else start[chosen.ids],
    )
    limits = () if got.solved else (_which_limit(options),)
    if got.counts is None:
        return _Found(None, 0.0, limits)
    counts = chosen.spread(got.counts)
    cost = float(counts @ problem.cost_usd_per_h)
    bound = got.bound if chosen.holds_all_within(cost) else 0.0
    if lower is not None:
        bound = max(bound, lower)
    return _Found(counts, bound, limits)


def _fractions(
    problem: AllocationProblem, options: SolveOptions
) -> tuple[Floats, Floats, Ints | None, tuple[str, ...]]:
    """Class by class the largest smallest fraction: targets (m,), bounds (m,), counts, limits."""
    rows = len(problem.demand_req_per_s)
    target, bound = np.zeros(rows), np.ones(rows)
    counts: Ints | None = None
    limits: tuple[str, ...] = ()
    for level in np.unique(problem.priority):
        active = problem.priority == level
        chosen, _ = select(problem, np.where(active, 1.0, target), MIP_COLUMNS, counts)
        # Half of the time: the cheapest plan at these fractions is to be found in the rest.
        seconds = 0.5 * options.left_s()
        got = maximise_fraction(chosen.problem, active, target, options.mip_nodes, seconds, 1e-3)
        limits = limits if got.solved else (*limits, _which_limit(options))
        most = got.bound if chosen.whole and np.isfinite(got.bound) else 1.0
        value = 0.0
        if got.counts is not None:
            counts = chosen.spread(got.counts)
            served = problem.served_req_per_s(counts) / problem.demand_req_per_s
            value = min(1.0, float(served[active].min()))
        bound[active] = max(most, value)
        # A hair below what is proven to be possible, so that rounding cannot make it impossible.
        target[active] = value if value >= 1.0 else value * (1.0 - 1e-8)
    return target, bound, counts, limits


def _which_limit(options: SolveOptions) -> str:
    return "wall_clock" if options.left_s() <= 0.0 else "mip_nodes"
