"""How much can be served where not all demand can be met.

Owns the order: class by class the largest smallest fraction, and where that is not all of it, row
by row as much as can be had without taking from any other. Classes are tried together and halved
where that fails, since few fail. Knows nothing of costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.check import faults
from autoscaler.optimizer.exact import maximise_fraction, most_fraction
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import SolveOptions
from autoscaler.optimizer.selection import MIP_COLUMNS, by_relaxation

_PRECISION = 1e-3
"""Relative: a fraction this near to its bound is as large as can be."""
_GLANCE = 0.1
"""Of time and work, for a look at several steps: where it does not settle it, they are halved."""
_ALL = 1.0 - 1e-9


@dataclass(frozen=True, slots=True)
class Served:
    """`counts` (n,) that serve `target` (m,) of each row; `bound` (m,): no plan serves a larger
    smallest fraction of the row's class, where what comes before it gets its target."""

    counts: Ints
    target: Floats
    bound: Floats
    limits: tuple[str, ...]


def most_served(
    problem: AllocationProblem, options: SolveOptions, start: Ints | None = None
) -> Served:
    """The fractions that can be served, found within the limits; at least what `start` (n,) serves
    where it fits."""
    search = _Search(problem, options)
    if start is not None and not faults(problem, start, search.target):
        search.counts = start
    classes = [np.flatnonzero(problem.priority == c) for c in np.unique(problem.priority)]
    search.steps = [(rows, True) for rows in classes]
    search.run()
    return Served(search.counts, search.target, search.bound, tuple(dict.fromkeys(search.limits)))


class _Search:
    """steps: rows that are raised together, and whether they are a whole class."""

    def __init__(self, problem: AllocationProblem, options: SolveOptions) -> None:
        rows = len(problem.demand_req_per_s)
        self.problem, self.options = problem, options
        self.steps: list[tuple[Ints, bool]] = []
        self.counts: Ints = np.zeros(problem.columns, dtype=np.int64)
        self.target, self.bound = np.zeros(rows), np.ones(rows)
        self.limits: list[str] = []

    def run(self) -> None:
        # So many steps are known to fail together; 0: not known. All of them did.
        failing = len(self.steps)
        while self.steps:
            many = max(1, failing // 2) if failing else len(self.steps)
            rows = np.concatenate([rows for rows, _ in self.steps[:many]])
            most = self._raise(rows, together=many > 1)
            served = float(self._served()[rows].min())
            if served >= _ALL:
                self.target[rows] = 1.0
                del self.steps[:many]
                failing = max(0, failing - many)
            elif many > 1:
                failing = many
            else:
                _, whole = self.steps.pop(0)
                # A hair below what is possible, so that rounding cannot make it impossible.
                self.target[rows] = served * (1.0 - 1e-8)
                if whole:
                    self.bound[rows] = max(most, served)
                    alone = np.split(rows, len(rows)) if len(rows) > 1 else []
                    self.steps[:0] = [(row, False) for row in alone]
                failing = 0

    def _served(self) -> Floats:
        served = self.problem.served_req_per_s(self.counts) / self.problem.demand_req_per_s
        return np.minimum(1.0, served)

    def _raise(self, rows: Ints, together: bool) -> float:
        """Better counts for the smallest fraction of `rows`, and its bound.

        together: rows of several steps, for which all that matters is whether they get all."""
        now = float(self._served()[rows].min())
        if now >= _ALL:
            return 1.0
        if self.options.is_over():
            self.limits.append("wall_clock")
            return 1.0
        active = np.zeros(len(self.target), dtype=bool)
        active[rows] = True
        relaxed = most_fraction(self.problem, active, self.target, self.options.left_s())
        most = 1.0 if relaxed is None else min(1.0, -relaxed.value)
        if most < _ALL and (together or most <= now * (1.0 + _PRECISION)):
            return most
        # All of it or no more: what is as near as the precision already needs no more than a look.
        glance = together or now >= 1.0 - _PRECISION
        chosen = by_relaxation(self.problem, relaxed, MIP_COLUMNS, self.counts)
        got = maximise_fraction(
            chosen.problem,
            active,
            self.target,
            int(self.options.mip_nodes * (_GLANCE if glance else 1.0)),
            self.options.left_s() * (_GLANCE if glance else 0.5),
            0.0 if glance else _PRECISION,
            enough=_ALL if glance else 0.0,
            start=self.counts[chosen.ids],
        )
        if got.limit and not glance:
            self.limits.append(got.limit)
        if got.counts is not None:
            self.counts = chosen.spread(got.counts)
        if chosen.whole and np.isfinite(got.bound):
            most = min(most, got.bound)
        if not glance and most >= _ALL and float(self._served()[rows].min()) >= 1.0 - _PRECISION:
            return min(most, self._raise(rows, together))
        return most
