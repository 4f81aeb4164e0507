"""Best effort: the fractions of the demand that can be served if not all of it can.

Class by class the smallest fraction is maximised. If a class is not served in full, each of its
rows then gets as much as possible without taking from any other. A row that follows an underserved
row asks for less. Classes are tried together and halved on failure, since few fail. The largest
fraction is found by bisection, because a check of a given fraction is far easier than a
maximisation: the solver may round whatever whole columns must serve for it. The search begins at
the relaxation, rounded and filled up, so that a plan exists at any time limit. Once the time is up,
each further class gets only the amount by which the plan can be filled up.
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

_PRECISION = 1e-3
"""Relative: a fraction this near to its bound is as large as can be. A smaller one is none."""
_ALONE = 1e-2
"""The same for a single row, relative to the share that its class leaves to it."""
_STEP = 0.5
"""Share of the remaining time for the next step: a class, then each of its rows."""
_FIRST_TEST = 0.1
"""Share of that time and work for the first test of a fraction."""
_ALL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Served:
    """`counts` (n,) that serve `target` (m,) of each row; `bound` (m,): no plan serves a larger
    smallest fraction of the demand of the row's class, if the classes before it get their target.
    """

    counts: Ints
    target: Floats
    bound: Floats
    limits: tuple[str, ...]


def most_served(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> Served:
    """The fractions that can be served, as found within the limits; at least those of `start` (n,)
    if it fits."""
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
    """steps: rows that are raised together, and whether they are a whole class. `problem` has as
    demand the present demand of the rows of `declared`, to which `target` refers."""

    def __init__(self, problem: AllocationProblem, options: SolveOptions) -> None:
        rows = len(problem.demand_req_per_s)
        self.declared = self.problem = problem
        self.options = options
        self.steps: list[tuple[Ints, bool]] = []
        self.counts: Ints = np.zeros(problem.columns, dtype=np.int64)
        self.target, self.bound = np.zeros(rows), np.ones(rows)
        self.limits: list[str] = []

    def run(self) -> None:
        # This many steps are known to fail together; 0: unknown. At first all of them are.
        failing = len(self.steps)
        while self.steps:
            many = max(1, failing // 2) if failing else len(self.steps)
            if self.options.is_over():
                many = 1  # no search is possible
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
        """Reserve these fractions for `rows` in later steps: slightly below the possible, so that
        rounding cannot make them impossible."""
        self.target[rows] = np.where(served >= _ALL, 1.0, served * (1.0 - 1e-8))

    def _asking(self, rows: Ints) -> Ints:
        """Return those of `rows` with a demand, and set `problem` to the present demand of all
        rows; later rows count as fully served."""
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
        """Improve the counts for the smallest fraction of `rows`; returns its bound.

        together: rows of several steps, for which only full service matters.
        """
        precision = _PRECISION if len(rows) > 1 else _ALONE
        options = self.options if together else self.options.within(_STEP)
        found = largest_fraction(
            self.problem, rows, self.target, options, self.counts, precision, together
        )
        self.counts = found.counts
        self.limits += found.limits
        return found.bound


@dataclass(frozen=True, slots=True)
class Largest:
    """`counts` (n,) that serve the largest smallest fraction found, its `bound`, the limits that
    ended the search, its MIPs and their nodes."""

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
    precision: float = _PRECISION,
    all_or_nothing: bool = False,
) -> Largest:
    """Counts (n,) that serve the largest smallest fraction of `rows`, and at least `target` (m,) of
    each row as `counts` do, which are kept if no better ones exist.

    all_or_nothing: the search ends if the fraction cannot be 1.
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
    if search.bound >= _ALL:
        search.is_reachable(1.0, _FIRST_TEST)
    if not all_or_nothing:
        search.climb(precision)
    limits = search.limits if search.is_far(precision) and not all_or_nothing else ()
    return Largest(search.counts, search.bound, limits, search.mips, search.nodes)


class _Fraction:
    """`now`: the smallest fraction of the `active` rows that `counts` serve, and `all` fractions
    together; `most`: the largest that the columns `chosen` may serve, `bound` all columns."""

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
        """Whether the fraction is farther than `precision` from the largest possible one."""
        return self.now < _ALL and self.most - self.now > precision * max(self.now, _PRECISION)

    def fill(self) -> None:
        """Add to `counts` all that fits: a first plan for any time limit."""
        full = np.where(self.active, 1.0, self.target)
        self._offer(filled(self.problem, self.counts, np.flatnonzero(self.active), full))

    def relax(self) -> None:
        """Find by the relaxation a bound, the columns to search, and a better first plan."""
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
        """Raise the fraction as far as time and work allow. A check that a limit ends proves
        nothing: the next one asks for less and may take longer, and finally the bisection restarts
        at the top."""
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
            if failed - self.now <= precision * max(self.now, _PRECISION):
                failed = self.most

    def is_reachable(self, asked: float, share: float) -> bool:
        """Whether a plan exists for this fraction, as found with this share of time and work."""
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
        least = max(least, asked)  # the solver's tolerance
        if (least, all_) > (self.now, self.all) and not faults(self.problem, counts, self.target):
            self.counts, self.now, self.all = counts, least, all_

    def _evaluate(self, counts: Ints) -> tuple[float, float]:
        served = _fractions(self.problem, counts)
        return float(served[self.active].min()), float(served.sum())


def _fractions(problem: AllocationProblem, counts: Ints) -> Floats:
    served = problem.served_req_per_s(counts) / problem.demand_req_per_s
    return np.minimum(1.0, served)
