"""The second opinion on a plan: a second solver gets the plan's problem, and plain arithmetic
recounts the plan.

A claim is the objective of the plan and its proven bound. The second solver refutes it with a
solution below the bound, with a bound above the objective, or with the proof that there is no
solution. If its time limit ends the search, the claim is not refuted and not confirmed either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from autoscaler.domain.cluster import Market
from autoscaler.optimizer.activity_lp import Mix, MixProblem, Unfound, most_work, work_program
from autoscaler.optimizer.array_types import Ints
from autoscaler.optimizer.best_effort import PRECISION
from autoscaler.optimizer.milp import cost_program, fraction_program
from autoscaler.optimizer.problem import AllocationProblem
from autoscaler.optimizer.result import AllocationResult, SolveOptions, Status
from autoscaler.optimizer.solve import solve
from autoscaler.planning.milp_formulation import formulate
from autoscaler.planning.plan import BudgetWork, Plan
from autoscaler.planning.planning_problem import PlanningProblem
from streams.solver.second_solver import (
    TOLERANCE,
    Answer,
    Outcome,
    broken_row,
    solved_again,
)


class Verdict(StrEnum):
    """The judgement of a claim."""

    AGREES = "agrees"  # the second solver's proven optimum is between the bound and the objective
    NOT_REFUTED = "not_refuted"  # nothing contradicts, but the second solver has no proven optimum
    DISAGREES = "disagrees"


class Quantity(StrEnum):
    """The quantity that a comparison compares."""

    PLAN_COST = "plan_usd_per_h"  # rent of the plan's nodes, counted again from its instances
    OBJECTIVE = "objective_usd_per_h"  # rent and penalties, without nodes that every plan keeps
    SERVED_FRACTION = "served_fraction"  # smallest served fraction of the first priority class
    MULTIPLE = "multiple"  # how often the whole work is done per unit of time


class Refutation(StrEnum):
    """Why the second opinion disagrees."""

    COUNT_DIFFERS = "count_differs"  # the recount gives another figure
    ROW_BROKEN = "row_broken"  # the plan violates a row of its problem
    BELOW_BOUND = "below_bound"  # the second solver has a better solution than the bound allows
    ABOVE_OBJECTIVE = "above_objective"  # its bound excludes the plan's objective
    INFEASIBLE = "infeasible"  # it proves that there is no solution
    NOT_BEST = (
        "not_best"  # its solution is better than the plan, although no limit ended the search
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A figure of the plan and the second opinion. bound: the plan's proven bound; None: there
    is none. second: the second solver's answer, or the recount."""

    quantity: Quantity
    figure: float
    bound: float | None
    second: Answer
    refutation: Refutation | None = None

    @property
    def verdict(self) -> Verdict:
        """The judgement that follows from the refutation and the outcome."""
        if self.refutation is not None:
            return Verdict.DISAGREES
        return Verdict.AGREES if self.second.outcome is Outcome.OPTIMAL else Verdict.NOT_REFUTED


@dataclass(slots=True)
class RecordingSolver:
    """Solves allocation problems and keeps each one with its result, for the second opinion."""

    solved: list[tuple[AllocationProblem, AllocationResult]] = field(default_factory=list)

    def __call__(
        self, problem: AllocationProblem, options: SolveOptions, start: Ints | None
    ) -> AllocationResult:
        result = solve(problem, options, start)
        self.solved.append((problem, result))
        return result


@dataclass(slots=True)
class RecordingWorkSolver:
    """Like `RecordingSolver`, for the program of budget mode. It keeps what had a solution."""

    solved: list[MixProblem] = field(default_factory=list)

    def __call__(
        self, problem: MixProblem, seconds: float, gap: float, slack: float
    ) -> Mix | Unfound:
        result = most_work(problem, seconds, gap, slack)
        if isinstance(result, Mix):
            self.solved.append(problem)
        return result


def verify_plan(
    problem: PlanningProblem, plan: Plan, recorded: RecordingSolver, seconds: float
) -> tuple[Comparison, ...]:
    """The second opinion on `plan`, which the last solve of `recorded` made. A plan without any
    column or demand has no solve, so only its rent is counted again."""
    found = [recounted(problem, plan)]
    if recorded.solved:
        found += verify_allocation(*recorded.solved[-1], seconds)
        fixed = formulate(problem).fixed_usd_per_h
        objective = plan.objective_usd_per_h - fixed
        bound = plan.lower_bound_usd_per_h - fixed
        if found[-1].refutation is None:
            # the plan may keep the running fleet instead of the counts of the solve
            found[-1] = compared(Quantity.OBJECTIVE, objective, bound, found[-1].second)
    return tuple(found)


def verify_work(
    problem: PlanningProblem,
    plan: Plan,
    work: BudgetWork,
    recorded: RecordingWorkSolver,
    seconds: float,
) -> tuple[Comparison, ...]:
    """The second opinion on `plan`, whose `work` the last successful solve of `recorded` made. If
    the time limit left no solve, only the rent is counted again."""
    found = [recounted(problem, plan)]
    if recorded.solved:
        again = solved_again(work_program(recorded.solved[-1]), seconds)
        found.append(compared(Quantity.MULTIPLE, work.multiple, work.bound, again))
    return tuple(found)


def recounted(problem: PlanningProblem, plan: Plan) -> Comparison:
    """The rent of `plan`, counted again from its instances: whole nodes at their prices."""
    gpus = {pool.id: float(problem.taken_gpus.get(pool.id, 0)) for pool in problem.cluster.pools}
    for target in plan.targets:
        for member in target.combo.members:
            gpus[member.pool] += member.gpus * member.count * target.count
    standing, usd_per_h = problem.fixed_gpus(), 0.0
    for pool in problem.cluster.pools:
        if pool.market is not Market.OWNED:
            kept = problem.fixed_nodes(pool, standing.get(pool.id, 0))
            usd_per_h += max(kept, math.ceil(gpus[pool.id] / pool.per_node)) * pool.price_usd_per_h
    same = _same(usd_per_h, plan.cost_usd_per_h)
    again = Answer(Outcome.OPTIMAL, usd_per_h, usd_per_h)
    wrong = None if same else Refutation.COUNT_DIFFERS
    return Comparison(Quantity.PLAN_COST, plan.cost_usd_per_h, None, again, wrong)


def verify_allocation(
    problem: AllocationProblem, result: AllocationResult, seconds: float
) -> list[Comparison]:
    """The second opinion on `result`: first, if not all demand is served, on the fraction; last on
    the cost. Nothing if the solve failed, because it then claims nothing."""
    if result.status is Status.FAILED:
        return []
    found = []
    if (result.served_target < 1.0).any():
        found.append(_fraction(problem, result, seconds))
    program = cost_program(problem, result.served_target)
    program.col_upper_ = problem.upper.astype(np.float64)  # HiGHS gets derived, smaller bounds
    cost, bound = result.cost_usd_per_h, result.lower_bound_usd_per_h
    made = compared(Quantity.OBJECTIVE, cost, bound, solved_again(program, seconds))
    counts = result.counts.astype(np.float64)
    if broken_row(program, counts) is not None:
        made = replace(made, refutation=Refutation.ROW_BROKEN)
    elif not _same(float(counts @ problem.cost_usd_per_h), cost):
        made = replace(made, refutation=Refutation.COUNT_DIFFERS)
    return [*found, made]


def _fraction(problem: AllocationProblem, result: AllocationResult, seconds: float) -> Comparison:
    """The smallest served fraction of the first class: no other demand reduces it."""
    first = problem.priority == problem.priority.min()
    program = fraction_program(problem, first, np.zeros(len(first)))
    program.col_upper_ = np.concatenate([problem.upper.astype(np.float64), [1.0]])
    figure = float(result.served_fraction[first].min())
    bound = float(result.served_fraction_bound[first].min())
    made = compared(Quantity.SERVED_FRACTION, figure, bound, solved_again(program, seconds))
    best = made.second.objective
    far = best is not None and best * (1.0 - 1.1 * PRECISION) > figure + TOLERANCE
    if far and not result.limits_hit and made.refutation is None:
        return replace(made, refutation=Refutation.NOT_BEST)
    return made


_LARGER_IS_BETTER = (Quantity.SERVED_FRACTION, Quantity.MULTIPLE)


def compared(quantity: Quantity, figure: float, bound: float | None, answer: Answer) -> Comparison:
    """The plan's `figure` and `bound` against the `answer` to the minimisation of the same program;
    for a quantity that is maximised, the answer is that to the minimisation of its negative."""
    sign = -1.0 if quantity in _LARGER_IS_BETTER else 1.0
    refutation = None
    if answer.outcome is Outcome.INFEASIBLE:
        refutation = Refutation.INFEASIBLE
    elif _below(answer.objective, None if bound is None else sign * bound):
        refutation = Refutation.BELOW_BOUND
    elif _below(sign * figure, answer.bound):
        refutation = Refutation.ABOVE_OBJECTIVE
    shown = replace(
        answer,
        objective=None if answer.objective is None else sign * answer.objective,
        bound=None if answer.bound is None else sign * answer.bound,
    )
    return Comparison(quantity, figure, bound, shown, refutation)


def _below(value: float | None, limit: float | None) -> bool:
    return value is not None and limit is not None and value < limit and not _same(value, limit)


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
