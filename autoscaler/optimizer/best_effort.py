"""Best effort: the fractions of the demand that can be served if the demand cannot be met in full.
The search serves the priority classes one after the other. For each class, the smallest served
fraction of its rows is maximised. If a class is not served in full, each of its rows then gets as
much as possible without taking from any other row. If a row is underserved, the rows that follow it
(`problem.Follows`) demand less.

The search first tries to serve all classes in full at once. If that fails, it tries half as many
classes at once, because usually few classes cannot be served in full. Bisection finds the largest
fraction, because a check of a given fraction is far easier than a maximisation: a fixed fraction
makes the required column counts known, and the solver can round them up. The search starts from the
rounded and filled-up relaxation, so there is a plan even if the time is short. When the time is up,
the remaining classes get only columns that still fit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.array_types import Bools, Floats, Ints
from autoscaler.optimizer.check import faults
from autoscaler.optimizer.covers import is_decomposed
from autoscaler.optimizer.method import any_plan, most_fraction
from autoscaler.optimizer.milp import ExactResult
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import SolveOptions
from autoscaler.optimizer.round_and_fill import filled, rounded
from autoscaler.optimizer.selection import MIP_COLUMNS, by_relaxation

PRECISION = 1e-3
"""Relative tolerance: a fraction this close to its bound is final, and a fraction below it counts
as 0."""
_ALONE = 1e-2
"""Precision of the fraction of a single row, relative to that fraction."""
_STEP = 0.5
"""Share of the remaining time for the next step: a class, then each of its rows."""
_FIRST_TEST = 0.1
"""Share of a step's time and work for the first test of a fraction."""
_ALL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Served:
    """`counts` (n,) serve the fraction `target` (m,) of each row. `bound` (m,): no plan serves a
    larger smallest fraction of the row's class, if all earlier classes get their target."""

    counts: Ints
    target: Floats
    bound: Floats
    limits: tuple[str, ...]


def most_served(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> Served:
    """The largest fractions found within the limits. start (n,): counts of a plan; if it fits, no
    fraction is lower than under this plan."""
    search = _Search(problem, options)
    if start is not None and not faults(problem, start, search.target):
        search.counts = start
    classes = [np.flatnonzero(problem.priority == c) for c in np.unique(problem.priority)]
    search.steps = [(rows, True) for rows in classes]
    search.run()
    asked = problem.asked_req_per_s(search.target) / problem.demand_req_per_s
    limits = tuple(dict.fromkeys(search.limits))
    return Served(search.counts, search.target * asked, search.bound, limits)


class _Search:
    """A search over the classes. steps: the sets of rows still to serve, in order, each with a flag
    that is True for a whole class. `declared`: the original problem, to which `target` refers.
    `problem`: the same with the current demand of each row."""

    def __init__(self, problem: AllocationProblem, options: SolveOptions) -> None:
        rows = len(problem.demand_req_per_s)
        self.declared = self.problem = problem
        self.options = options
        self.steps: list[tuple[Ints, bool]] = []
        self.counts: Ints = np.zeros(problem.columns, dtype=np.int64)
        self.target, self.bound = np.zeros(rows), np.ones(rows)
        self.limits: list[str] = []

    def run(self) -> None:
        # At least one of the first `failing` steps is known to fail; 0: unknown.
        failing = len(self.steps)
        while self.steps:
            many = max(1, failing // 2) if failing else len(self.steps)
            if self.options.is_over():
                many = 1  # there is no time for a search
            rows = self._asking(np.concatenate([rows for rows, _ in self.steps[:many]]))
            if not len(rows):
                del self.steps[:many]
                continue
            most = self._raise(rows, together=many > 1)
            served = float(self._served()[rows].min())
            if served >= _ALL:
                self.target[rows] = 1.0
                del self.steps[:many]
                failing = max(0, failing - many)
            elif many > 1:
                failing = many
            else:
                whole = self.steps.pop(0)[1]
                self._hold(rows, np.full(len(rows), served))
                if whole:
                    self.bound[rows] = max(most, served)
                    if self.counts.any():  # without a plan there is nothing to fill up
                        full = np.ones(len(self.target))
                        self.counts = filled(self.problem, self.counts, rows, full)
                    if self.options.is_over():
                        self._hold(rows, self._served()[rows])
                    elif len(rows) > 1:
                        self.steps[:0] = [(row, False) for row in np.split(rows, len(rows))]
                failing = 0

    def _hold(self, rows: Ints, served: Floats) -> None:
        """Reserve the `served` fractions of `rows` in later steps, slightly reduced so that
        rounding cannot make them infeasible."""
        self.target[rows] = np.where(served >= _ALL, 1.0, served * (1.0 - 1e-8))

    def _asking(self, rows: Ints) -> Ints:
        """Set the demand in `problem` to the current demand of all rows, with rows of later steps
        counted as fully served. Return the rows in `rows` whose demand is above 0."""
        if self.declared.follows:
            got = self.target.copy()
            got[np.concatenate([rows for rows, _ in self.steps])] = 1.0
            asked = self.declared.asked_req_per_s(got)
            rows = rows[asked[rows] > 0.0]
            demand = np.where(asked > 0.0, asked, self.declared.demand_req_per_s)
            self.problem = replace(self.declared, demand_req_per_s=demand)
        return rows

    def _served(self) -> Floats:
        return _fractions(self.problem, self.counts)

    def _raise(self, rows: Ints, together: bool) -> float:
        """Change `counts` to increase the smallest served fraction of `rows`; returns the bound of
        that fraction.

        together: `rows` belong to several steps, so the search ends if they cannot all be served in
        full.
        """
        precision = PRECISION if len(rows) > 1 else _ALONE
        options = self.options if together else self.options.within(_STEP)
        found = largest_fraction(
            self.problem, rows, self.target, options, self.counts, precision, together
        )
        self.counts = found.counts
        self.limits += found.limits
        return found.bound


@dataclass(frozen=True, slots=True)
class Largest:
    """The result of a search for the plan whose smallest served fraction is largest. counts (n,):
    the best plan found. bound: upper bound of that fraction. limits: the limits that ended the
    search. mips: number of solved MIPs. nodes: number of their search nodes."""

    counts: Ints
    bound: float
    limits: tuple[str, ...] = ()
    mips: int = 0
    nodes: int = 0


def largest_fraction(
    problem: AllocationProblem,
    rows: Ints,
    target: Floats,
    options: SolveOptions,
    counts: Ints,
    precision: float = PRECISION,
    all_or_nothing: bool = False,
) -> Largest:
    """Counts (n,) that maximise the smallest served fraction of `rows`.

    They also serve at least the fraction `target` (m,) of each other row, as the given `counts`
    already do. If no better counts are found, `counts` is returned. all_or_nothing: the search ends
    as soon as the fraction is known to be below 1.
    """
    active = np.zeros(len(target), dtype=bool)
    active[rows] = True
    search = _Fraction(problem, active, target, options, counts)
    search.fill()
    if search.now >= _ALL:
        return Largest(search.counts, 1.0)
    if options.is_over():
        return Largest(search.counts, 1.0, ("wall_clock",))
    search.relax()
    if search.bound >= _ALL and not options.is_over():
        search.is_reachable(1.0, _FIRST_TEST)
    if not all_or_nothing:
        search.climb(precision)
    limits = search.limits if search.is_far(precision) and not all_or_nothing else ()
    return Largest(search.counts, search.bound, limits, search.mips, search.nodes)


class _Fraction:
    """The search of `largest_fraction`.

    `now`: smallest served fraction of the `active` rows under `counts`; `all`: sum of the fractions
    of all rows. `most`: upper bound of `now` if only the columns `chosen` are used; `bound`: upper
    bound for all columns.
    """

    def __init__(
        self,
        problem: AllocationProblem,
        active: Bools,
        target: Floats,
        options: SolveOptions,
        counts: Ints,
    ) -> None:
        self.problem, self.active, self.target, self.options = problem, active, target, options
        self.counts = counts
        self.now, self.all = self._evaluate(counts)
        self.most = self.bound = 1.0
        self.limits: tuple[str, ...] = ()
        self.mips = self.nodes = 0

    def is_far(self, precision: float) -> bool:
        """Whether `now` is farther than `precision` (relative) from its upper bound."""
        return self.now < _ALL and self.most - self.now > precision * max(self.now, PRECISION)

    def fill(self) -> None:
        """Add columns to `counts` while they fit: a first plan that needs no search."""
        full = np.where(self.active, 1.0, self.target)
        self._offer(filled(self.problem, self.counts, np.flatnonzero(self.active), full))

    def relax(self) -> None:
        """Use the relaxation to find a bound, the columns to search, and a better first plan."""
        rows, others = np.flatnonzero(self.active), np.flatnonzero(~self.active)
        full = np.where(self.active, 1.0, self.target)
        got, self.bound = most_fraction(self.problem, self.active, self.target, self.options)
        self.most = self.bound = min(1.0, self.bound)
        if got is not None:
            counts = filled(self.problem, rounded(self.problem, got.counts), others, full)
            self._offer(filled(self.problem, counts, rows, full))
        most = self.problem.columns if is_decomposed(self.problem) else MIP_COLUMNS
        self.chosen = by_relaxation(self.problem, got, most, self.counts)

    def climb(self, precision: float) -> None:
        """Increase the fraction by bisection, as far as time and work allow.

        If a limit ends a check, the check proves nothing; the next one tries a smaller fraction and
        may take longer. At the end the bisection restarts at the upper bound.
        """
        share, failed = _FIRST_TEST, self.most
        while self.is_far(precision) and not self.options.is_over():
            asked = 0.5 * (self.now + failed)
            if self.is_reachable(asked, share):
                continue
            failed = asked
            if self.most > asked:
                if share >= 1.0:
                    break
                share = min(1.0, 2.0 * share)
            if failed - self.now <= precision * max(self.now, PRECISION):
                failed = self.most

    def is_reachable(self, asked: float, share: float) -> bool:
        """Whether a search with this share of the time and work finds a plan that serves the
        fraction `asked`."""
        target = np.where(self.active, asked, self.target)
        got = any_plan(self.chosen.problem, target, self.options, share)
        self._count(got)
        if got.counts is not None:
            self._offer(self.chosen.spread(got.counts), asked)
        elif got.solved:
            self.most = min(asked, _ALL)
            if self.chosen.whole:
                self.bound = asked
        return self.now >= asked

    def _count(self, got: ExactResult) -> None:
        self.mips, self.nodes = self.mips + 1, self.nodes + got.nodes
        if got.limit:
            self.limits = (got.limit,)

    def _offer(self, counts: Ints, asked: float = 0.0) -> None:
        least, all_ = self._evaluate(counts)
        least = max(least, asked)  # the result may be lower by the solver's tolerance
        if (least, all_) > (self.now, self.all) and not faults(self.problem, counts, self.target):
            self.counts, self.now, self.all = counts, least, all_

    def _evaluate(self, counts: Ints) -> tuple[float, float]:
        served = _fractions(self.problem, counts)
        return float(served[self.active].min()), float(served.sum())


def _fractions(problem: AllocationProblem, counts: Ints) -> Floats:
    served = problem.served_req_per_s(counts) / problem.demand_req_per_s
    return np.minimum(1.0, served)
