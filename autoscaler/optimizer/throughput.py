"""The most work for a budget: how many copies of which configurations, and who serves what.

Demystifying Cost-Efficiency (sec. 4.3) minimises the makespan T with fractions x and copies y, and
the product x / y makes that bilinear. Divided by T it is linear: with z = x f / T, the requests/s
of a type that a configuration serves, and s = 1 / T, the same plans are those with

    sum_c z[c, w] = f[w] s      sum_w z[c, w] / h[c, w] <= y[c]      and s as large as possible.

So one MIP answers exactly, with the solver's own bound, and a sustained rate (s: how often the
demand fits) and a batch (T = 1 / s: its makespan) are one problem. `makespan_by_bisection` is the
paper's own search (App. F), kept as the reference. Arrays only: knows no model and no pool.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import highspy
import numpy as np

from autoscaler.domain.checks import InvalidValue
from autoscaler.optimizer.arrays import Floats, Ints
from autoscaler.optimizer.choose import mip_solver

_INF = highspy.kHighsInf


@dataclass(frozen=True, slots=True)
class MixProblem:
    """Configurations (n) that serve workload types (w) on nodes of kinds (k), for a budget.

    rates (n, w): requests/s of type w that one copy serves when it serves nothing else; 0 = never.
    work (w,): requests (or requests/s) of each type. usage (k, n): GPUs of a kind that one copy
    takes. node_gpus, node_usd_per_h, node_max (k,): size, price and number of the nodes.
    budget_usd_per_h: inf = none. copies_min, copies_max (g,): bounds on the copies of the
    configurations in each group (g, n). capped (q, n), capped_types (q, w), capped_share (q,): at
    most this share of the work of these types by these configurations.
    """

    rates: Floats
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

    def __post_init__(self) -> None:
        n, w = self.rates.shape
        if self.work.shape != (w,) or not np.all(np.isfinite(self.work)) or np.any(self.work <= 0):
            raise InvalidValue("work", self.work.tolist(), f"{w} positive numbers")
        if np.any(~np.isfinite(self.rates)) or np.any(self.rates < 0):
            raise InvalidValue("rates", "not finite or negative", "finite rates of 0 or more")
        if self.usage.shape != (len(self.node_gpus), n):
            raise InvalidValue("usage", self.usage.shape, f"({len(self.node_gpus)}, {n})")

    @property
    def unserved(self) -> Ints:
        """Types that no configuration serves."""
        return np.flatnonzero(~np.any(self.rates > 0.0, axis=0))


@dataclass(frozen=True, slots=True)
class Mix:
    """A serving plan. copies (n,), nodes (k,), fractions (n, w): of each type's work.

    multiple: how often the work fits into one unit of time, so 1 / multiple is the makespan;
    bound: no plan reaches more. usd_per_h: of the nodes. solved: ended by proof.
    """

    copies: Ints
    nodes: Ints
    fractions: Floats
    multiple: float
    bound: float
    usd_per_h: float
    solved: bool


def most_work(problem: MixProblem, seconds: float = 60.0, gap: float = 1e-6) -> Mix | None:
    """The plan with the largest multiple and, of those, the cheapest; None: not even a little of
    every type can be served within the limits."""
    if len(problem.unserved):
        return None
    form = _Form(problem)
    got = form.solve(seconds, gap)
    if got is None or got.value[form.s] <= 1e-12:
        return None
    bound = max(got.bound, float(got.value[form.s]))
    # Of plans that do as much, the cheapest: less money for the same work.
    cheaper = form.solve(seconds, 1e-4, at_least=float(got.value[form.s]) * (1.0 - 1e-7))
    chosen = got if cheaper is None else cheaper
    copies = np.round(chosen.value[: form.n]).astype(np.int64)
    exact = form.solve(seconds, 0.0, copies=copies)  # an LP: fractions without the MIP's slack
    return form.read((exact or chosen).value, bound, got.solved)


def reachable(problem: MixProblem, seconds: float, gap: float = 1e-3) -> float:
    """The largest multiple that is found within the limits; 0 where there is no plan."""
    got = None if len(problem.unserved) else _Form(problem).solve(seconds, gap)
    return 0.0 if got is None else float(got.value[-1])


def work_of(
    problem: MixProblem, copies: Ints, fractions: Floats | None = None, seconds: float = 60.0
) -> Mix | None:
    """The best assignment to copies that are given; with `fractions` (n, w) what these reach.

    None where some type gets nowhere."""
    if fractions is not None:
        time = np.zeros(len(copies))
        for c, w in zip(*np.nonzero(fractions > 0.0), strict=True):
            if problem.rates[c, w] <= 0.0 or copies[c] <= 0:
                return None
            time[c] += fractions[c, w] * problem.work[w] / (copies[c] * problem.rates[c, w])
        nodes = _nodes(problem, copies)
        multiple = 1.0 / float(np.max(time))
        usd = float(nodes @ problem.node_usd_per_h)
        return Mix(copies, nodes, fractions, multiple, multiple, usd, solved=True)
    form = _Form(problem)
    got = form.solve(seconds, 1e-9, copies=copies)
    if got is None or got.value[form.s] <= 1e-12:
        return None
    return form.read(got.value, float(got.value[form.s]), got.solved)


def proportional_fractions(problem: MixProblem, copies: Ints) -> Floats:
    """Each type spread over the copies by their rates for it: what a router without knowledge of
    types comes to when it looks at each replica's speed (Demystifying sec. 4.2, cases 1 and 2)."""
    return _normalised(problem.rates * copies[:, None])


def even_fractions(problem: MixProblem, copies: Ints) -> Floats:
    """Each type spread evenly over all copies that can serve it: round robin."""
    return _normalised((problem.rates > 0.0) * copies[:, None].astype(float))


def _normalised(weight: Floats) -> Floats:
    """Columns scaled to sum to 1; those without any weight stay 0."""
    total = weight.sum(axis=0)
    made: Floats = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0.0)
    return made


def makespan_by_bisection(
    problem: MixProblem, tolerance: float = 1e-3, seconds: float = 60.0
) -> tuple[float, float] | None:
    """(feasible, infeasible) makespans no further apart than `tolerance`, by the feasibility MILPs
    of Demystifying App. F; None when a limit struck before that."""
    if len(problem.unserved):
        return None
    gpus = max(1.0, float(problem.node_gpus @ problem.node_max))
    low = float(np.max(problem.work / problem.rates.max(axis=0))) / gpus
    slowest = np.where(problem.rates > 0.0, problem.rates, np.inf).min(axis=0)
    high = float(np.sum(problem.work / slowest))
    form = _Form(problem)
    while high - low > tolerance:
        middle = (low + high) / 2.0
        feasible = form.feasible(middle, seconds)
        if feasible is None:
            return None
        low, high = (low, middle) if feasible else (middle, high)
    return high, low


def _nodes(problem: MixProblem, copies: Ints) -> Ints:
    return np.ceil(problem.usage @ copies / problem.node_gpus - 1e-9).astype(np.int64)


@dataclass(frozen=True, slots=True)
class _Solved:
    value: Floats
    bound: float
    solved: bool


class _Form:
    """The MIP: columns y (n), node counts (k), z (one per possible pair), s. Rows in `_rows`."""

    def __init__(self, problem: MixProblem) -> None:
        self.problem = problem
        self.config, self.type = np.nonzero(problem.rates > 0.0)
        n, k = problem.rates.shape[0], len(problem.node_gpus)
        self.n, self.k, self.pairs = n, k, len(self.config)
        self.s = n + k + self.pairs
        self.rows: list[tuple[list[int], list[float], float, float]] = []
        self._rows()

    def _rows(self) -> None:
        p, n, first = self.problem, self.n, self.n + self.k
        z = np.arange(self.pairs) + first
        for w in range(len(p.work)):  # all of a type is served, s times over
            mine = z[self.type == w]
            self._row([*mine, self.s], [*np.ones(len(mine)), -p.work[w]], 0.0, 0.0)
        for c in range(n):  # a copy is busy for at most all of its time
            pick = self.config == c
            busy = 1.0 / p.rates[c, self.type[pick]]
            self._row([*z[pick], c], [*busy, -1.0], -_INF, 0.0)
        for kind in range(self.k):  # copies stand on whole nodes
            used = np.flatnonzero(p.usage[kind])
            self._row([*used, n + kind], [*p.usage[kind, used], -p.node_gpus[kind]], -_INF, 0.0)
        if np.isfinite(p.budget_usd_per_h):
            kinds = [n + kind for kind in range(self.k)]
            self._row(kinds, list(p.node_usd_per_h), -_INF, p.budget_usd_per_h)
        for g, mask in enumerate(p.groups):
            members = np.flatnonzero(mask)
            self._row(list(members), [1.0] * len(members), p.copies_min[g], p.copies_max[g])
        for q, mask in enumerate(p.capped):
            of = (mask[self.config] > 0) & (p.capped_types[q][self.type] > 0)
            work = float(p.work[p.capped_types[q] > 0].sum())
            self._row(
                [*z[of], self.s], [*np.ones(int(of.sum())), -p.capped_share[q] * work], -_INF, 0.0
            )

    def _row(self, columns: list[int], values: list[float], low: float, high: float) -> None:
        self.rows.append(([int(c) for c in columns], [float(v) for v in values], low, high))

    def solve(
        self,
        seconds: float,
        gap: float,
        at_least: float | None = None,
        copies: Ints | None = None,
    ) -> _Solved | None:
        """Largest s; with `at_least` the least money for that s; with `copies` these are fixed."""
        lower, upper = np.zeros(self.s + 1), np.full(self.s + 1, _INF)
        upper[self.n : self.n + self.k] = self.problem.node_max
        upper[: self.n] = self._most_copies()
        cost = np.zeros(self.s + 1)
        if at_least is None:
            cost[self.s] = -1.0
        else:
            lower[self.s] = upper[self.s] = at_least
            cost[self.n : self.n + self.k] = self.problem.node_usd_per_h
        if copies is not None:
            lower[: self.n] = upper[: self.n] = copies
        got = self._run(cost, lower, upper, self.rows, seconds, gap)
        if got is None or at_least is not None:
            return got
        return _Solved(got.value, -got.bound, got.solved)

    def feasible(self, makespan: float, seconds: float) -> bool | None:
        """Whether all work can be done within `makespan`; None: a limit struck first."""
        lower, upper = np.zeros(self.s + 1), np.full(self.s + 1, _INF)
        upper[self.n : self.n + self.k] = self.problem.node_max
        upper[: self.n] = self._most_copies()
        lower[self.s] = upper[self.s] = 1.0 / makespan
        got = self._run(np.zeros(self.s + 1), lower, upper, self.rows, seconds, 0.0)
        if got is None:
            return False
        return True if got.solved else None

    def _most_copies(self) -> Floats:
        p = self.problem
        room = np.floor(
            np.divide(
                (p.node_gpus * p.node_max)[:, None],
                p.usage,
                out=np.full(p.usage.shape, np.inf),
                where=p.usage > 0,
            )
        )
        most: Floats = room.min(axis=0, initial=np.inf)
        return most

    def _run(
        self,
        cost: Floats,
        lower: Floats,
        upper: Floats,
        rows: list[tuple[list[int], list[float], float, float]],
        seconds: float,
        gap: float,
    ) -> _Solved | None:
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(cost), len(rows)
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = cost, lower, upper
        lp.row_lower_ = np.array([row[2] for row in rows])
        lp.row_upper_ = np.array([row[3] for row in rows])
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.cumsum([0, *(len(row[0]) for row in rows)]).astype(np.int32)
        lp.a_matrix_.index_ = np.array([c for row in rows for c in row[0]], dtype=np.int32)
        lp.a_matrix_.value_ = np.array([v for row in rows for v in row[1]])
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [whole] * (self.n + self.k) + [real] * (self.pairs + 1)
        solver = mip_solver(10**7, seconds, gap)
        solver.passModel(lp)
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        solved = solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
        value = np.asarray(solver.getSolution().col_value)
        return _Solved(value, float(info.mip_dual_bound), solved)

    def read(self, value: Floats, bound: float, solved: bool) -> Mix:
        """Copies are rounded to whole ones, and fractions made to sum to 1."""
        p = self.problem
        copies = np.round(value[: self.n]).astype(np.int64)
        fractions = np.zeros(p.rates.shape)
        fractions[self.config, self.type] = np.maximum(0.0, value[self.n + self.k : self.s])
        fractions /= fractions.sum(axis=0)
        fractions[fractions < 1e-9] = 0.0
        fractions /= fractions.sum(axis=0)
        busy = (fractions * p.work / np.where(p.rates > 0, p.rates, np.inf)).sum(axis=1)
        used = copies > 0
        multiple = 1.0 / float(np.max(busy[used] / copies[used]))
        nodes = _nodes(p, copies)
        usd = float(nodes @ p.node_usd_per_h)
        return Mix(copies, nodes, fractions, multiple, max(bound, multiple), usd, solved)
