"""Thresholds of services that route to several models, as part of a plan. Mode quality chooses
them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from autoscaler.domain.mode_hook import ModeHook
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import ChosenSplit, PlanAnswer, PlanRequest
from autoscaler.planning.planning_problem import PlanOptions
from autoscaler.planning.rollout_feasibility import RollablePlan

Solve = Callable[[PlanRequest, dict[str, Demand], PlanOptions], RollablePlan]
"""Plans a request for the given demands, within the given limits."""


@dataclass(frozen=True, slots=True)
class PlannedThresholds:
    """The thresholds that belong to a plan. demands: by model, under these thresholds. made: the
    plan for these demands, None if the request plans no thresholds."""

    splits: tuple[ChosenSplit, ...]
    demands: dict[str, Demand]
    made: RollablePlan | None

    def added_to(self, answer: PlanAnswer) -> PlanAnswer:
        """`answer` with the thresholds and their demands; unchanged without thresholds."""
        if not self.splits:
            return answer
        return replace(answer, splits=self.splits, demands=tuple(self.demands.values()))


PLAN_THRESHOLDS: ModeHook[
    [PlanRequest, Iterable[QualityRoute], dict[str, Demand], Solve, PlanOptions], PlannedThresholds
] = ModeHook("quality")
