"""Budget: the most work for the budget, from the fleet that runs.

Owns the order of the questions: the best plan, whether the fleet does as much as it is, what binds.
The problem says by workload type what is asked for (`planning.typed`); one that nothing serves
within the SLO is left out and said. Where not all floors can be kept, the models of most priority
and demand keep theirs; where not even one instance of every model can be had, those of least get
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from autoscaler.optimizer.mixture import Mix, most_work, work_of
from autoscaler.planning.budget import (
    BudgetArrays,
    as_used,
    binding,
    budget_arrays,
    by_importance,
    shares,
    valued,
    with_floors_that_hold,
    without,
    without_floors,
)
from autoscaler.planning.notes import with_words
from autoscaler.planning.plan import Plan, PlanStatus, Work
from autoscaler.planning.problem import PlanningProblem
from autoscaler.planning.readback import failed, read_back

_EXACT = 1e-6
_URGENT_S = 4.0
"""Seconds for additions: they are wanted at once, and the next full plan does better."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Demystifying's program as one MIP."""

    name: str = "budget"

    def solve(self, problem: PlanningProblem) -> Plan:
        """The plan that does most; what runs stays where it does as much but for `hold`."""
        if not problem.types:
            why = "policy.objective is cost: there is no budget to make the most of"
            return failed(problem, self.name, why, ())
        seconds, asked, dropped = problem.options.time_limit_s, problem, []
        if problem.additions_only:
            seconds = min(seconds, _URGENT_S)
        arrays, best = self._with_floors(asked, seconds / 2.0)
        while best is None and arrays.types:
            dropped.append(_least(asked))
            asked = without(asked, dropped[-1])
            arrays, best = self._with_floors(asked, seconds / 2.0)
        if best is None:
            usd = problem.cluster.policy.budget_usd_per_h
            why = f"{usd:.2f} USD/h and the nodes to be had allow no instance that meets its SLO"
            return failed(problem, self.name, why, ())
        mix = _staying(asked, arrays, best) or best
        missing = [*arrays.unserved, *(t for t in problem.types if t.model in dropped)]
        work = Work(
            mix.multiple,
            None if best.bound is None else max(best.bound, mix.multiple),
            shares(arrays, mix),
            tuple((typed.model, typed.type.name) for typed in missing),
        )
        notes = [f"no GPU serves {typed.name} within the SLO" for typed in arrays.unserved]
        notes += [f"{model}: the budget does not reach for an instance" for model in dropped]
        standing = problem.standing()
        counts = {
            combo.id: int(count) - standing.get(combo.id, 0)
            for combo, count in zip(arrays.combos, mix.copies, strict=True)
        }
        used = as_used(problem, valued(asked, arrays, mix))
        exact = work.gap is not None and work.gap <= _EXACT
        proven = PlanStatus.OPTIMAL if exact else PlanStatus.WITHIN_GAP
        status = proven if best.solved else PlanStatus.LIMIT
        limits = () if best.solved else ("time",)
        made = read_back(used, self.name, counts, status, limits_hit=limits, notes=tuple(notes))
        gap = -1.0 if work.bound is None else 1.0 - work.multiple / work.bound
        made = with_words(used, replace(made, gap=gap, work=work))
        if problem.additions_only:
            return made
        return replace(made, binding=binding(asked, arrays, mix, seconds / 4.0))

    def _with_floors(
        self, problem: PlanningProblem, seconds: float
    ) -> tuple[BudgetArrays, Mix | None]:
        """The best plan with all floors, or else with as much of them as can be kept."""
        arrays = budget_arrays(problem)
        best = self._best(arrays, problem, seconds)
        if best is not None or not arrays.mix.copies_min.any():
            return arrays, best
        free = self._best(without_floors(arrays), problem, seconds)
        if free is None:
            return arrays, None
        arrays = with_floors_that_hold(problem, arrays, free.multiple, seconds)
        best = self._best(arrays, problem, seconds)
        return (without_floors(arrays), free) if best is None else (arrays, best)

    def _best(self, arrays: BudgetArrays, problem: PlanningProblem, seconds: float) -> Mix | None:
        gap = problem.options.gap
        if not arrays.types:
            return None
        return most_work(arrays.mix, seconds / 2.0, gap, slack=max(1e-7, gap))


def _staying(problem: PlanningProblem, arrays: BudgetArrays, best: Mix) -> Mix | None:
    """The fleet that runs, with the best assignment to it, where that does as much."""
    running = arrays.mix.running.astype(np.int64)
    if not problem.options.hold or not running.any():
        return None
    as_it_is = work_of(arrays.mix, running)
    enough = best.multiple * (1.0 - problem.options.hold)
    if as_it_is is None or as_it_is.multiple < enough or not _fits(arrays, as_it_is):
        return None
    return as_it_is


def _fits(arrays: BudgetArrays, mix: Mix) -> bool:
    """Whether nodes, floors and the budget allow these copies."""
    p = arrays.mix
    per_group = p.groups @ mix.copies
    return bool(
        np.all(mix.nodes <= np.maximum(p.node_max, p.node_min))
        and np.all(p.together @ mix.nodes <= p.together_max)
        and np.all(per_group >= p.copies_min)
        and np.all(per_group <= p.copies_max)
        and mix.usd_per_h <= p.budget_usd_per_h + _EXACT
    )


def _least(problem: PlanningProblem) -> str:
    """The planned model that goes without first."""
    models = tuple(dict.fromkeys(typed.model for typed in problem.types))
    return models[by_importance(problem, models)[-1]]
