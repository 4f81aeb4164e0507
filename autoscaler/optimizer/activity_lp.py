"""Chooses the number of copies of each configuration, and the share of the work that each copy
does. Budget mode and component graphs use the same program. Work has types. An activity does
requests of one type, on one configuration or along a path over several configurations. Each request
occupies a copy of each of these configurations for some seconds. z is the requests/s of an
activity; s is how often the whole work is done per second:

    sum of z over a type's activities = work[type] s
    sum over activities of busy[c, a] z[a] <= y[c]          copies y on whole nodes, for a budget

Demystifying Cost-Efficiency (sec. 4.3) minimises the makespan T = 1 / s with the fractions x = z T
/ f. With those variables the program is bilinear (x / y). With z and s it is linear, so one MIP
gives the optimum and its bound. Cornserve (sec. 4.2, App. B) has the same program with paths. The
input is arrays only, without models and pools.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

import highspy
import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.optimizer.array_types import Floats, Ints
from autoscaler.optimizer.milp import mip_solver

_INF = highspy.kHighsInf
_SETTLE_S = 60.0
"""Limit in seconds for the LP over one fleet. The LP takes milliseconds."""
_IMPOSSIBLE = (
    highspy.HighsModelStatus.kInfeasible,
    highspy.HighsModelStatus.kUnboundedOrInfeasible,
)


@dataclass(frozen=True, slots=True)
class MixProblem:
    """Configurations (n), activities (a), types of work (w), kinds of nodes (k).

    busy (n, a): seconds that one request of an activity occupies a copy. type_of (a,): the type of
    an activity. work (w,): requests of each type (a batch), or requests/s. usage (k, n): GPUs of a
    kind that one copy takes. node_gpus, node_usd_per_h, node_max (k,): size, price and maximal
    number of the nodes. budget_usd_per_h: inf = none. groups (g, n): copies_min and copies_max (g,)
    bound the copies of the configurations in each group. capped (q, a), capped_types (q, w),
    capped_share (q,): q limits; each sets the largest share of the work of some types that some
    activities may do. together (t, k), together_max (t,): t sets of node kinds, each with its
    largest total number of nodes.

    Existing fleet (empty: none): taken (k,): GPUs that are not available to the copies. node_min
    (k,): nodes that every plan pays for. running (n,): running copies; each further copy costs
    start_usd_per_h (n,) if plans that do the same work are compared. copies_low (n,): copies that
    every plan keeps.
    """

    busy: Floats
    type_of: Ints
    work: Floats
    usage: Floats
    node_gpus: Floats
    node_usd_per_h: Floats
    node_max: Floats
    budget_usd_per_h: float
    groups: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    copies_min: Floats = field(default_factory=lambda: np.zeros(0))
    copies_max: Floats = field(default_factory=lambda: np.zeros(0))
    capped: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    capped_types: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    capped_share: Floats = field(default_factory=lambda: np.zeros(0))
    together: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    together_max: Floats = field(default_factory=lambda: np.zeros(0))
    taken: Floats = field(default_factory=lambda: np.zeros(0))
    node_min: Floats = field(default_factory=lambda: np.zeros(0))
    running: Floats = field(default_factory=lambda: np.zeros(0))
    start_usd_per_h: Floats = field(default_factory=lambda: np.zeros(0))
    copies_low: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        n, a = self.busy.shape
        if not np.all(np.isfinite(self.work)) or np.any(self.work <= 0.0):
            raise InvalidValue("work", self.work.tolist(), "positive numbers")
        if not np.all(np.isfinite(self.busy)) or np.any(self.busy < 0.0):
            raise InvalidValue("busy", "not finite or negative", "finite seconds of 0 or more")
        if self.type_of.shape != (a,) or np.any(self.type_of >= len(self.work)):
            raise InvalidValue("type_of", self.type_of.tolist(), f"{a} types")
        if self.usage.shape != (len(self.node_gpus), n):
            raise InvalidValue("usage", self.usage.shape, f"({len(self.node_gpus)}, {n})")

    @property
    def unserved(self) -> Ints:
        """Types of work that no activity does."""
        return np.setdiff1d(np.arange(len(self.work)), self.type_of)


def alone(rates: Floats) -> tuple[Floats, Ints, Ints]:
    """Arrays (busy, type_of, configuration) of activities that use a single configuration each.
    rates (n, w): requests/s of a copy that serves only this type; 0: it cannot serve the type.
    """
    config, type_of = np.nonzero(rates > 0.0)
    busy = np.zeros((len(rates), len(config)))
    busy[config, np.arange(len(config))] = 1.0 / rates[config, type_of]
    return busy, type_of, config


@dataclass(frozen=True, slots=True)
class Mix:
    """A serving plan. copies (n,), nodes (k,). fractions (a,): for each activity, its share of the
    work of its type.

    multiple: how often the whole work is done per unit of time; the makespan is 1 / multiple.
    bound: no plan reaches a larger multiple; None if no bound is known. usd_per_h: price of the
    nodes. solved: the search ended with a proof, not at a limit.
    """

    copies: Ints
    nodes: Ints
    fractions: Floats
    multiple: float
    bound: float | None
    usd_per_h: float
    solved: bool


class Unfound(Enum):
    """Reason for a missing plan. IMPOSSIBLE: proven; LIMIT: a limit ended the search first."""

    IMPOSSIBLE = auto()
    LIMIT = auto()


def most_work(
    problem: MixProblem, seconds: float = 60.0, gap: float = 1e-6, slack: float = 1e-7
) -> Mix | Unfound:
    """The plan with the largest multiple. Of all plans whose multiple is within `slack` (relative)
    of the largest one, it is the cheapest, including starts.

    The search for the cheapest of these plans may take half of `seconds` in addition. IMPOSSIBLE:
    some type cannot be served at all.
    """
    if len(problem.unserved):
        return Unfound.IMPOSSIBLE
    form = _Form(problem)
    got = form.solve(seconds, gap)
    if isinstance(got, Unfound):
        return got
    if got.multiple <= 1e-12:
        return Unfound.IMPOSSIBLE if got.solved else Unfound.LIMIT
    cheaper = form.solve(seconds / 2.0, 1e-4, multiple=got.multiple * (1.0 - slack))
    copies = got.copies if isinstance(cheaper, Unfound) else cheaper.copies
    bound = max(got.bound, got.multiple) if np.isfinite(got.bound) else None
    return form.settle(copies, bound, got.solved) or Unfound.LIMIT


@dataclass(frozen=True, slots=True)
class Cheapest:
    """A plan of least cost, and a lower bound on the cost of every plan."""

    mix: Mix
    bound_usd_per_h: float


def least_cost(
    problem: MixProblem, multiple: float = 1.0, seconds: float = 60.0, gap: float = 1e-6
) -> Cheapest | Unfound:
    """The cheapest plan that does the whole work `multiple` times per second."""
    if len(problem.unserved):
        return Unfound.IMPOSSIBLE
    form = _Form(problem)
    got = form.solve(seconds, gap, multiple=multiple)
    if isinstance(got, Unfound):
        return got
    mix = form.settle(got.copies, None, got.solved)
    if mix is None:
        return Unfound.LIMIT
    return Cheapest(mix, max(0.0, min(got.bound, mix.usd_per_h)))


def work_program(problem: MixProblem) -> highspy.HighsLp:
    """The MIP of `most_work`: the largest multiple, as a minimisation of its negative."""
    return _Form(problem).program()


def rate_program(problem: MixProblem, multiple: float = 1.0) -> highspy.HighsLp:
    """The MIP of `least_cost`."""
    return _Form(problem).program(multiple)


def reachable(problem: MixProblem, seconds: float, gap: float = 1e-3) -> float:
    """The largest multiple found within the limits; 0 if no plan was found."""
    if len(problem.unserved):
        return 0.0
    got = _Form(problem).solve(seconds, gap)
    return 0.0 if isinstance(got, Unfound) else got.multiple


def most_copies(problem: MixProblem, group: int, multiple: float, seconds: float) -> float:
    """The largest number of copies of `group` in any plan that reaches `multiple` within all other
    bounds; too low if the time limit ends the search."""
    form = _Form(problem)
    got = form.solve(seconds, 1e-3, multiple=multiple, most_of=problem.groups[group])
    return 0.0 if isinstance(got, Unfound) else float(problem.groups[group] @ got.copies)


def work_of(problem: MixProblem, copies: Ints, fractions: Floats | None = None) -> Mix | None:
    """The best assignment of work to the given `copies`. fractions (a,): if given, this assignment
    is evaluated instead. None if some type is not served at all.
    """
    if fractions is None:
        return _Form(problem).settle(copies, None, solved=True)
    return _reached(problem, copies, fractions, None, solved=True)


def _by_type(problem: MixProblem, weight: Floats) -> Floats:
    """`weight` (a,), scaled per type: the weights of each type's activities sum to 1."""
    total = np.bincount(problem.type_of, weights=weight, minlength=len(problem.work))
    share: Floats = weight / np.where(total > 0.0, total, 1.0)[problem.type_of]
    return share


def _reached(
    problem: MixProblem, copies: Ints, fractions: Floats, bound: float | None, solved: bool
) -> Mix | None:
    """The plan with these `copies` and `fractions` (a,), and the multiple that it reaches; None if
    some type of work is not done."""
    done = np.bincount(problem.type_of, weights=fractions, minlength=len(problem.work))
    busy = problem.busy @ (fractions * problem.work[problem.type_of])
    if np.any(np.abs(done - 1.0) > 1e-6) or np.any((busy > 0.0) & (copies <= 0)):
        return None
    multiple = 1.0 / float(np.max(busy / np.maximum(copies, 1)))
    used = problem.usage @ copies + _or_zeros(problem.taken, len(problem.node_gpus))
    needed = np.ceil(used / problem.node_gpus - 1e-9)
    nodes = np.maximum(needed, _or_zeros(problem.node_min, len(needed))).astype(np.int64)
    usd = float(nodes @ problem.node_usd_per_h)
    bound = None if bound is None else max(bound, multiple)
    return Mix(copies, nodes, fractions, multiple, bound, usd, solved)


def _or_zeros(values: Floats, size: int) -> Floats:
    return values if len(values) else np.zeros(size)


@dataclass(frozen=True, slots=True)
class _Solved:
    """The copies, the multiple, and the bound of the objective (multiple, or USD/h); the bound is
    infinite if none is known."""

    copies: Ints
    multiple: float
    fractions: Floats
    bound: float
    solved: bool


class _Form:
    """The MIP: copies y (n), node counts (k), requests/s z (a), the multiple s, starts (n)."""

    def __init__(self, problem: MixProblem) -> None:
        self.problem = problem
        self.n, self.activities = problem.busy.shape
        self.k = len(problem.node_gpus)
        self.first = self.n + self.k
        self.s = self.first + self.activities
        self.columns = self.s + 1 + (self.n if len(problem.start_usd_per_h) else 0)
        self.rows: list[tuple[list[int], list[float], float, float]] = []
        self._rows()

    def _rows(self) -> None:
        p, n = self.problem, self.n
        z = np.arange(self.activities) + self.first
        for w in range(len(p.work)):  # the whole work of a type is done s times
            mine = z[p.type_of == w]
            self._row([*mine, self.s], [*np.ones(len(mine)), -p.work[w]], 0.0, 0.0)
        for c in range(n):  # a copy is busy for at most all of its time
            takes = np.flatnonzero(p.busy[c])
            self._row([*z[takes], c], [*p.busy[c, takes], -1.0], -_INF, 0.0)
        for kind in range(self.k):  # copies run on whole nodes
            used = np.flatnonzero(p.usage[kind])
            left = [*p.usage[kind, used], -p.node_gpus[kind]]
            taken = _or_zeros(p.taken, self.k)[kind]
            self._row([*used, n + kind], left, -_INF, -taken)
        if np.isfinite(p.budget_usd_per_h):
            kinds = [n + kind for kind in range(self.k)]
            self._row(kinds, list(p.node_usd_per_h), -_INF, p.budget_usd_per_h)
        for mask, most in zip(p.together, p.together_max, strict=True):
            kinds = [n + int(kind) for kind in np.flatnonzero(mask)]
            self._row(kinds, [1.0] * len(kinds), -_INF, float(most))
        for g, mask in enumerate(p.groups):
            members = np.flatnonzero(mask)
            self._row(list(members), [1.0] * len(members), p.copies_min[g], p.copies_max[g])
        for q, mask in enumerate(p.capped):
            of = (mask > 0) & (p.capped_types[q][p.type_of] > 0)
            work = float(p.work[p.capped_types[q] > 0].sum())
            allowed = -p.capped_share[q] * work
            self._row([*z[of], self.s], [*np.ones(int(of.sum())), allowed], -_INF, 0.0)

        # copies in addition to the running ones must be started
        for c in range(self.columns - self.s - 1):
            running = _or_zeros(p.running, n)[c]
            self._row([c, self.s + 1 + c], [1.0, -1.0], -_INF, running)

    def _row(self, columns: list[int], values: list[float], low: float, high: float) -> None:
        self.rows.append(([int(c) for c in columns], [float(v) for v in values], low, high))

    def solve(
        self,
        seconds: float,
        gap: float,
        multiple: float | None = None,
        copies: Ints | None = None,
        most_of: Floats | None = None,
    ) -> _Solved | Unfound:
        """Maximise the multiple s. multiple: if given, minimise the cost of a plan that reaches it
        instead. most_of (n,): if given, maximise the number of these copies instead, while
        `multiple` is reached. copies: fixed numbers of copies, if given.
        """
        lp = self.program(multiple, copies, most_of)
        got = self._run(lp, seconds, gap)
        if isinstance(got, Unfound):
            return got
        value, bound, solved = got
        return _Solved(
            copies=np.round(value[: self.n]).astype(np.int64),
            multiple=float(value[self.s]),
            fractions=np.maximum(0.0, value[self.first : self.s]),
            bound=-bound if multiple is None else bound,
            solved=solved,
        )

    def program(
        self,
        multiple: float | None = None,
        copies: Ints | None = None,
        most_of: Floats | None = None,
    ) -> highspy.HighsLp:
        """The minimisation that `solve` hands to HiGHS."""
        p = self.problem
        lower, upper = np.zeros(self.columns), np.full(self.columns, _INF)
        lower[self.n : self.first] = _or_zeros(p.node_min, self.k)
        upper[self.n : self.first] = np.maximum(p.node_max, lower[self.n : self.first])
        lower[: self.n] = _or_zeros(p.copies_low, self.n)
        upper[: self.n] = np.maximum(self._most_copies(), lower[: self.n])
        cost = np.zeros(self.columns)
        if multiple is None:
            cost[self.s] = -1.0
        elif most_of is not None:
            lower[self.s] = multiple
            cost[: self.n] = -most_of
        else:
            lower[self.s] = upper[self.s] = multiple
            cost[self.n : self.first] = p.node_usd_per_h
            cost[self.s + 1 :] = p.start_usd_per_h
        if copies is not None:
            lower[: self.n] = upper[: self.n] = copies
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(cost), len(self.rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, lower, upper
        lp.row_lower_ = np.array([row[2] for row in self.rows])
        lp.row_upper_ = np.array([row[3] for row in self.rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in self.rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([c for row in self.rows for c in row[0]], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([v for row in self.rows for v in row[1]])
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [whole] * self.first + [real] * (self.columns - self.first)
        return lp

    def settle(self, copies: Ints, bound: float | None, solved: bool) -> Mix | None:
        """The best assignment of work to `copies`. An LP computes it, because the fractions from
        the MIP are only exact to its tolerances."""
        got = self.solve(_SETTLE_S, 0.0, copies=copies)
        if isinstance(got, Unfound) or got.multiple <= 1e-12:
            return None
        fractions = _by_type(self.problem, got.fractions)
        fractions = _by_type(self.problem, np.where(fractions < 1e-9, 0.0, fractions))
        return _reached(self.problem, copies, fractions, bound, solved)

    def _most_copies(self) -> Floats:
        p = self.problem
        room = np.divide(
            (p.node_gpus * p.node_max)[:, None],
            p.usage,
            out=np.full(p.usage.shape, np.inf),
            where=p.usage > 0,
        )
        most: Floats = np.floor(room).min(axis=0, initial=np.inf)
        return most

    def _run(
        self, lp: highspy.HighsLp, seconds: float, gap: float
    ) -> tuple[Floats, float, bool] | Unfound:
        """(values, bound, whether the search ended with a proof)."""
        solver = mip_solver(10**7, seconds, gap)
        solver.passModel(lp)
        solver.run()
        info, ended = solver.getInfo(), solver.getModelStatus()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return Unfound.IMPOSSIBLE if ended in _IMPOSSIBLE else Unfound.LIMIT
        solved = ended == highspy.HighsModelStatus.kOptimal
        return np.asarray(solver.getSolution().col_value), float(info.mip_dual_bound), solved
