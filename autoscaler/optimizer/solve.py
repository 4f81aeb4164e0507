"""`solve`: the entry point for every allocation problem.

Each independent part of the problem is solved separately. If the demand of a part cannot be met,
the result is the cheapest best-effort plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.best_effort import most_served
from autoscaler.optimizer.check import checked, failed
from autoscaler.optimizer.components import parts
from autoscaler.optimizer.method import cheapest
from autoscaler.optimizer.milp import relaxed
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions

_LEAST_S = 0.05
"""Each part gets at least these seconds, if so much time remains."""
_FOR_FRACTIONS = 0.6
"""Share of the time for finding the served fractions; the rest is for the cheapest plan that serves
them."""

_MANY = 50_000
"""Below this number of columns, no time is reserved to fill up and check the plan."""
_END_S, _MOST_FOR_END = 6e-7, 0.3
"""Time to fill up and check a plan: seconds per column, and the largest share of the whole time."""


@dataclass(frozen=True, slots=True)
class _Incumbent:
    """Counts that serve the fraction `target` (m,) of each row, the bound of their cost, and the
    bounds of the fractions (m,). rough: there was no time to search for better counts."""

    counts: Ints
    bound: float
    target: Floats
    fraction_bound: Floats
    limits: tuple[str, ...]
    rough: bool = False


def solve(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> AllocationResult:
    """The cheapest counts that serve all demand, with a proven bound; best effort if that is
    impossible.

    start (n,): counts of a plan with which the search begins. The result is deterministic if only
    work limits in `options` end the search. Every plan is checked again in floating point before it
    is returned; a plan that fails the check has the status FAILED.
    """
    rows = len(problem.demand_req_per_s)
    counts = np.zeros(problem.columns, dtype=np.int64)
    bound, limits = 0.0, list[str]()
    options = _without_the_end(options, problem)
    found = tuple(part for part in parts(problem) if part.ids.size)
    target = np.zeros(rows)  # rows without a column keep 0
    for part in found:
        target[part.rows] = 1.0
    fraction_bound = target.copy()
    options = _after(options, problem, target)
    if options.spare and len(found) > 1:  # solve parts that cannot be served in full first
        found = tuple(sorted(found, key=lambda part: _may_be_served(part.problem, options)))
    to_do = sum(len(part.ids) for part in found)
    for part in found:
        share = len(part.ids) / to_do
        got = _part(part.problem, options, share, None if start is None else start[part.ids])
        if isinstance(got, tuple):
            why = f"no plan was found within the limits: {', '.join(got)}"
            return failed(problem, why, got)
        to_do -= len(part.ids)
        counts[part.ids] = got.counts
        target[part.rows], fraction_bound[part.rows] = got.target, got.fraction_bound
        bound += got.bound
        limits += got.limits
        options = _after(options, part.problem, got.target)
    hit = tuple(dict.fromkeys(limits))
    return checked(problem, counts, bound, target, fraction_bound, options, hit)


def _without_the_end(options: SolveOptions, problem: AllocationProblem) -> SolveOptions:
    """`options` without the time that is needed to fill up and check a plan of `problem`."""
    if problem.columns < _MANY:
        return options
    end_s = min(_MOST_FOR_END * options.time_limit_s, _END_S * problem.columns)
    return replace(options, time_limit_s=options.time_limit_s - end_s)


def _part(
    problem: AllocationProblem, options: SolveOptions, share: float, start: Ints | None
) -> _Incumbent | tuple[str, ...]:
    """Solve one part in its `share` of the time. If that share is too short for any search, the
    part gets more time."""
    while True:
        got = _solved(problem, options.within(share, _LEAST_S), start)
        enough = not got.rough if isinstance(got, _Incumbent) else "wall_clock" not in got
        if enough or share >= 1.0 or options.is_over():
            return got
        share = min(1.0, max(2.0 * share, 2.0 * _LEAST_S / max(_LEAST_S, options.left_s())))


def _solved(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None
) -> _Incumbent | tuple[str, ...]:
    """Serve all demand if possible, otherwise as much as possible; returns the limits if no plan
    was found."""
    whole = np.ones(len(problem.demand_req_per_s))
    counts, bound, limits = cheapest(problem, whole, options, start)
    if counts is not None:
        return _Incumbent(counts, bound, whole, whole, limits)
    rough = options.is_over()
    served = most_served(problem, options.within(_FOR_FRACTIONS * (1.0 - options.spare)), start)
    if served.limits and not served.counts.any():
        return served.limits  # without a plan, the served fractions are unknown
    options = _after(options, problem, served.target)
    known = bound if (served.target >= 1.0).all() else 0.0
    counts, bound, more = cheapest(problem, served.target, options, served.counts)
    bound = max(bound, known)
    if counts is None:  # time is up: use the best-effort plan, which serves these fractions
        counts = served.counts
    hit = (*limits, *served.limits, *more)
    return _Incumbent(counts, bound, served.target, served.bound, hit, rough)


def _after(options: SolveOptions, problem: AllocationProblem, target: Floats) -> SolveOptions:
    """`options` without the time reserved for the caller, if `target` (m,) does not serve the first
    classes in full."""
    if (target[problem.priority < options.spare_classes] < 1.0).any():
        return replace(options.within(1.0 - options.spare), spare=0.0)
    return options


def _may_be_served(problem: AllocationProblem, options: SolveOptions) -> bool:
    """Whether the LP relaxation of `problem` serves all demand."""
    return relaxed(problem, np.ones(len(problem.demand_req_per_s)), options.left_s()) is not None
