"""When not all demand can be served: the largest smallest fraction, and a bound that proves it.

Owns the search for that fraction of a decomposed problem. Small problems go to MIPs; for large
ones the bound comes by bisection on the proof that no mix of covers fits, and the plan by trying
just below it. Knows nothing of cost: that is minimised afterwards at the fraction found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.arrays import Floats
from autoscaler.optimizer.best_effort import largest_fraction as most_of
from loadtests.coral.column_form import columns_of, plan_of
from loadtests.coral.decomposition import proven_infeasible, solve_decomposed
from loadtests.coral.greedy_fill import filled
from loadtests.coral.groups import Decomposed, with_demand
from loadtests.coral.incumbent import Incumbent
from loadtests.coral.limits import SearchOptions, Work

MIP_COLUMNS = 10_000
"""Above this many pairs the fraction is searched by decomposition."""
PRECISION = 5e-4
"""Width at which bisection of the bound stops."""
STEPS = (0.0, 0.001, 0.003, 0.006, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64)
"""How far below the bound a plan is tried, relative."""


@dataclass(frozen=True, slots=True)
class Fraction:
    """Smallest fraction of demand that `plan` serves, and the proven bound on it."""

    served: float
    bound: float
    plan: Incumbent | None
    limits: tuple[str, ...]
    work: Work


def largest_fraction(
    problem: Decomposed,
    options: SearchOptions,
    mu: Floats | None = None,
    nearest: Incumbent | None = None,
) -> Fraction:
    """The largest t such that every group can be served t of its demand. `mu` (k,): multipliers
    known to be about right. `nearest`: a plan that serves everything but does not fit."""
    if any(len(g.ids) == 0 for g in problem.groups):
        return Fraction(0.0, 0.0, None, (), Work())
    high, work, limits = _bound(problem, options.within(0.3))
    if sum(int(g.allowed.sum()) for g in problem.groups) <= MIP_COLUMNS:
        found = _by_mip(problem, options, high, work)
        if found.limits:
            found = _at_least_filled(problem, found, mu)
        return replace(found, limits=tuple(dict.fromkeys((*limits, *found.limits))))
    found = _by_steps(problem, options.within(0.6), high, mu, nearest, work)
    return replace(found, limits=(*limits, *found.limits))


def scaled(problem: Decomposed, fraction: float) -> Decomposed:
    """The same problem for a fraction of the demand."""
    groups = tuple(with_demand(g, g.demand * fraction) for g in problem.groups)
    return replace(problem, groups=groups)


def _bound(problem: Decomposed, options: SearchOptions) -> tuple[float, Work, tuple[str, ...]]:
    """A fraction above which it is proven that demand cannot be served."""
    low, high, rounds = 0.0, 1.0, 0
    if not proven_infeasible(problem, options):
        return 1.0, Work(), ("wall_clock",) if options.out_of_time() else ()
    while high - low > PRECISION * high and high > 1e-6:
        if options.out_of_time():
            return high, Work(pricing_rounds=rounds), ("wall_clock",)
        middle = (low + high) / 2
        rounds += 1
        if proven_infeasible(scaled(problem, middle), options):
            high = middle
        else:
            low = middle
    return high, Work(pricing_rounds=rounds), ()


def _by_mip(problem: Decomposed, options: SearchOptions, high: float, work: Work) -> Fraction:
    flat, owners, codes = columns_of(problem)
    groups = len(problem.groups)
    found = most_of(
        flat,
        np.arange(groups),
        np.zeros(groups),
        replace(options, mip_nodes=50 * options.mip_nodes),
        np.zeros(flat.columns, dtype=np.int64),
    )
    work += Work(mips=found.mips, mip_nodes=found.nodes)
    bound = min(high, found.bound)
    if not found.counts.any():
        return Fraction(0.0, bound, None, found.limits, work)
    served = flat.served_req_per_s(found.counts) / flat.demand_req_per_s
    plan = plan_of(problem, flat, owners, codes, found.counts)
    fraction = min(1.0, float(served.min()))
    return Fraction(fraction, max(bound, fraction), plan, found.limits, work)


def _at_least_filled(problem: Decomposed, found: Fraction, mu: Floats | None) -> Fraction:
    """What a search without time found, or the greedy fill where that serves more."""
    least, plan = filled(problem, np.zeros(len(problem.capacity)) if mu is None else mu)
    if least <= found.served:
        return found
    return replace(found, served=least, plan=plan)


def _by_steps(
    problem: Decomposed,
    options: SearchOptions,
    high: float,
    mu: Floats | None,
    nearest: Incumbent | None,
    work: Work,
) -> Fraction:
    start = np.zeros(len(problem.capacity)) if mu is None else mu
    least, plan = filled(problem, start)
    limits: tuple[str, ...] = ()
    for step in STEPS:
        fraction = high * (1.0 - step)
        if fraction <= least:
            break
        if options.out_of_time():
            return Fraction(least, high, plan, (*limits, "wall_clock"), work)
        feasible = replace(options.within(0.4), gap=1.0)  # the first plan that fits will do
        outcome = solve_decomposed(scaled(problem, fraction), feasible, mu, nearest)
        nearest = outcome.nearest or nearest
        work += outcome.work
        if outcome.plan is not None:
            return Fraction(fraction, high, outcome.plan, limits, work)
        limits = tuple(dict.fromkeys((*limits, "first_plan", *outcome.limits)))
    return Fraction(least, high, plan, limits, work)
