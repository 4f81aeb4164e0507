"""Budget strategy: the most work for the budget, starting from the running fleet.

It finds the best plan and its binding constraints, and keeps the running fleet if that is good
enough. The problem gives the demand by workload type (`planning.workload_types`). A type that
no combo serves within the SLO is dropped and reported. If not all floors can be met, the models
with the highest priority and demand keep their floors. If the budget does not suffice for one
instance of every model, the least important models get nothing. If the time limit ends the search
before a plan is found, the running fleet stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autoscaler.domain.reason import Reason
from autoscaler.modes.budget.budget_program import (
    BudgetArrays,
    binding_limits,
    budget_arrays,
    by_importance,
    combos_as_used,
    request_shares,
    with_combos,
    with_feasible_floors,
    without_floors,
    without_models,
)
from autoscaler.optimizer.activity_lp import Mix, MixProblem, Unfound, most_work, work_of
from autoscaler.planning.decode_solution import decode_plan, failed_plan
from autoscaler.planning.plan import BudgetWork, Plan, PlanStatus
from autoscaler.planning.plan_notes import with_notes
from autoscaler.planning.planning_problem import PlanningProblem, PlanOptions
from topics.reason_codes import ReasonCode

_EXACT = 1e-6
"""Tolerance of the solver: a smaller relative gap, or an excess of fewer USD/h, is rounding."""
_SEARCH, _BINDING = 0.4, 0.5
"""Shares of the remaining time for one search and for the binding constraints. A search may take
50% more than its share to find the cheapest of equal plans."""
_ANY_GAP = 1.0
"""Gap of a search that only checks feasibility."""
_URGENT_S = 4.0
"""Time limit of an urgent plan of additions in seconds; the next full plan improves it."""


Solver = Callable[[MixProblem, float, float, float], Mix | Unfound]
"""`most_work`, or one that records its problems."""


@dataclass(frozen=True, slots=True)
class BudgetStrategy:
    """The program of Demystifying Cost-Efficiency as one MIP."""

    solver: Solver = most_work
    name: str = "budget"

    def solve(self, problem: PlanningProblem) -> Plan:
        """The plan with the most work, or the running fleet if its work is within the hysteresis of
        the best plan."""
        if not problem.types:
            return failed_plan(problem, self.name, Reason(ReasonCode.NO_BUDGET_OBJECTIVE), ())
        options = _options(problem)
        reduced, dropped = problem, tuple[str, ...]()
        arrays, best = _best(reduced, options, self.solver)
        if best is Unfound.IMPOSSIBLE and arrays.types:
            dropped = _unaffordable_models(problem, arrays, options, self.solver)
            reduced = without_models(problem, dropped)
            arrays, best = _best(reduced, options, self.solver)
        if best is Unfound.LIMIT or (best is Unfound.IMPOSSIBLE and arrays.types):
            return failed_plan(problem, self.name, Reason(ReasonCode.NOT_IN_TIME), ("time",))
        if isinstance(best, Unfound):
            usd = (problem.cluster.policy.budget_usd_per_h,)
            why = Reason(ReasonCode.BUDGET_WITHOUT_PLAN, "*", quantities=usd)
            return failed_plan(problem, self.name, why, ())
        mix = _prefer_running(reduced, arrays, best)
        missing = [*arrays.unserved, *(t for t in problem.types if t.model in dropped)]
        work = BudgetWork(
            mix.multiple,
            None if best.bound is None else max(best.bound, mix.multiple),
            request_shares(arrays, mix),
            tuple((typed.model, typed.type.name) for typed in missing),
        )
        unserved = ReasonCode.TYPE_NOT_SERVED
        notes = [Reason(unserved, names=(typed.name,)) for typed in arrays.unserved]
        notes += [Reason(ReasonCode.BUDGET_TOO_SMALL, model) for model in dropped]
        standing = problem.fixed_fleet()
        counts = {
            combo.id: int(count) - standing.get(combo.id, 0)
            for combo, count in zip(arrays.combos, mix.copies, strict=True)
        }
        used = with_combos(problem, combos_as_used(reduced, arrays, mix))
        exact = work.gap is not None and work.gap <= _EXACT
        proven = PlanStatus.OPTIMAL if exact else PlanStatus.WITHIN_GAP
        status = proven if best.solved else PlanStatus.LIMIT
        limits = () if best.solved else ("time",)
        made = decode_plan(used, self.name, counts, status, limits_hit=limits, notes=tuple(notes))
        gap = -1.0 if work.bound is None else 1.0 - work.multiple / work.bound
        made = with_notes(used, replace(made, gap=gap, work=work))
        if problem.additions_only or options.is_over():
            return made
        return replace(
            made, binding=binding_limits(reduced, arrays, mix, _seconds(options, _BINDING))
        )


def _options(problem: PlanningProblem) -> PlanOptions:
    """The options of `problem`, with less time for additions."""
    options = problem.options
    if not problem.additions_only:
        return options
    if options.elapsed_s is None:
        return replace(options, time_limit_s=min(options.time_limit_s, _URGENT_S))
    return options.within(_URGENT_S / max(_URGENT_S, options.left_s()))


def _seconds(options: PlanOptions, share: float) -> float:
    """This share of the remaining time, or of the whole time if there is no clock."""
    left_s = options.left_s()
    return share * (options.time_limit_s if math.isinf(left_s) else max(0.0, left_s))


def _best(
    problem: PlanningProblem, options: PlanOptions, solver: Solver
) -> tuple[BudgetArrays, Mix | Unfound]:
    """The best plan that meets the floors as far as possible. If the time limit ends the search,
    the fallback is the running fleet if it meets the floors, else a plan that keeps each model's
    running instances up to its floor.
    """
    arrays = budget_arrays(problem)
    best = _search(arrays, options, solver)
    if best is Unfound.LIMIT and (running := _running_mix(arrays)) is not None:
        best = replace(running, solved=False)
    if isinstance(best, Mix) or not arrays.mix.copies_min.any():
        return arrays, best
    free = _search(without_floors(arrays), options, solver)
    if isinstance(free, Unfound):
        return arrays, free
    if best is Unfound.IMPOSSIBLE:
        seconds = _seconds(options, _SEARCH)
        arrays = with_feasible_floors(problem, arrays, free.multiple, seconds)
        best = _search(arrays, options, solver)
        if isinstance(best, Mix):
            return arrays, best
    if not _keeps_running(arrays, free):
        return arrays, Unfound.LIMIT
    return without_floors(arrays), replace(free, solved=False)


def _keeps_running(arrays: BudgetArrays, mix: Mix) -> bool:
    """Whether `mix` keeps the running copies of every model, up to its floor."""
    p = arrays.mix
    return bool(np.all(p.groups @ mix.copies >= np.minimum(p.copies_min, p.groups @ p.running)))


def _search(arrays: BudgetArrays, options: PlanOptions, solver: Solver) -> Mix | Unfound:
    if not arrays.types:
        return Unfound.IMPOSSIBLE
    slack = max(1e-7, options.gap)
    return solver(arrays.mix, _seconds(options, _SEARCH), options.gap, slack)


def _prefer_running(problem: PlanningProblem, arrays: BudgetArrays, best: Mix) -> Mix:
    """The running fleet with its best assignment of work if its work is within the hysteresis of
    `best`; otherwise `best`."""
    if not problem.options.hysteresis:
        return best
    as_it_is, enough = _running_mix(arrays), best.multiple * (1.0 - problem.options.hysteresis)
    return best if as_it_is is None or as_it_is.multiple < enough else as_it_is


def _running_mix(arrays: BudgetArrays) -> Mix | None:
    """The running fleet with its best assignment of work; None if a limit forbids the fleet or a
    type is unserved."""
    running = arrays.mix.running.astype(np.int64)
    mix = work_of(arrays.mix, running) if running.any() else None
    return mix if mix is not None and _fits(arrays, mix) else None


def _fits(arrays: BudgetArrays, mix: Mix) -> bool:
    """Whether the nodes, floors and budget allow the copies of `mix`."""
    p = arrays.mix
    per_group = p.groups @ mix.copies
    return bool(
        np.all(mix.nodes <= np.maximum(p.node_max, p.node_min))
        and np.all(p.together @ mix.nodes <= p.together_max)
        and np.all(per_group >= p.copies_min)
        and np.all(per_group <= p.copies_max)
        and mix.usd_per_h <= p.budget_usd_per_h + _EXACT
    )


def _unaffordable_models(
    problem: PlanningProblem, arrays: BudgetArrays, options: PlanOptions, solver: Solver
) -> tuple[str, ...]:
    """Models for which the budget does not suffice for one instance in addition to the more
    important models."""
    models = tuple(dict.fromkeys(typed.model for typed in arrays.types))
    quick = replace(options, gap=_ANY_GAP)
    out = set(models)
    for k in by_importance(problem, models):
        trial = without_models(problem, out - {models[k]})
        if _search(without_floors(budget_arrays(trial)), quick, solver) is not Unfound.IMPOSSIBLE:
            out.remove(models[k])
    return tuple(model for model in models if model in out)
