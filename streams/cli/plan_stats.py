"""`shoal plan --stats`: the steps of a plan's search, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoscaler.optimizer.result import Step
from autoscaler.planning.planning_problem import PlanningProblem

_HEADINGS = ("step", "columns", "built", "bound USD/h", "cost USD/h", "gap", "ended at")


@dataclass(slots=True)
class Stats:
    """Collects the steps of a plan's search. elapsed_s: the planner's clock in seconds."""

    elapsed_s: Callable[[], float]
    steps: list[Step] = field(default_factory=list)

    def problem_made(self, problem: PlanningProblem) -> None:
        """Add a step for the generated candidates of `problem`."""
        found = sum(len(combos) for combos in problem.candidates.values())
        self.steps.append(Step("candidates", found, 0, 0.0, math.inf, self.elapsed_s()))

    def lines(self) -> list[str]:
        """A table of the steps. The steps of independent parts of the search follow each other."""
        rows = [_HEADINGS, *map(_cells, self.steps)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADINGS))]
        return [
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]


def _cells(step: Step) -> Sequence[str]:
    known = step.bound_usd_per_h > 0.0
    found = math.isfinite(step.cost_usd_per_h)
    return (
        step.name,
        str(step.columns),
        str(step.built) if step.built else "-",
        f"{step.bound_usd_per_h:.2f}" if known else "-",
        f"{step.cost_usd_per_h:.2f}" if found else "-",
        f"{100.0 * step.gap:.2f}%" if known and found else "-",
        f"{step.elapsed_s:.2f} s",
    )


def as_json(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """The steps under stable keys; null if there is no plan yet."""
    return [
        {
            "step": step.name,
            "columns": step.columns,
            "built": step.built,
            "lower_bound_usd_per_h": step.bound_usd_per_h,
            "cost_usd_per_h": step.cost_usd_per_h if math.isfinite(step.cost_usd_per_h) else None,
            "ended_at_s": step.elapsed_s,
        }
        for step in steps
    ]
