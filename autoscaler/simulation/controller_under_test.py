"""The real fold as a decider: the one place where a simulation meets `decide`.

Owns putting an observation together and sorting effects. A simulation of a controller that was
restarted starts from `state` as `rebuild` gave it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.estimate.model_demand import ModelDemand, observe
from autoscaler.planning.planner_messages import PlanRequest
from autoscaler.simulation.decider import Said, Seen
from autoscaler.state.effects import (
    PublishAssignment,
    PublishDecision,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment
from topics.routing import Routes

See = Callable[[Mapping[str, ModelDemand]], Mapping[str, ModelDemand]]


class LiveController:
    """`decide`, its state kept from tick to tick. see: what of the demand
    it is shown, None = all of it (experiments leave parts out)."""

    def __init__(self, see: See | None = None) -> None:
        self.state: ControllerState | None = None
        self._see = see

    def decide(self, seen: Seen, now_ms: int) -> Said:
        """One tick."""
        cluster = seen.cluster
        models = [service.model for service in cluster.services]
        models += [route.name for route in cluster.routes]
        demand: Mapping[str, ModelDemand] = observe(seen.windows, models, cluster.policy, now_ms)
        observation = Observation(
            demand=self._see(demand) if self._see else demand,
            statuses=seen.statuses,
            availability=seen.availability,
            prices=seen.prices,
            answers=seen.answers,
            alerts=seen.alerts,
        )
        state = self.state or ControllerState(started_ms=now_ms)
        self.state, effects = decide(state, observation, cluster, now_ms)
        assignments: list[Assignment] = []
        routes: list[Routes] = []
        decisions: list[Decision] = []
        plans: list[PlanRecord] = []
        requests: list[PlanRequest] = []
        for effect in effects:
            if isinstance(effect, PublishAssignment):
                assignments.append(effect.record)
            elif isinstance(effect, PublishRoutes):
                routes.append(effect.record)
            elif isinstance(effect, PublishDecision):
                decisions.append(effect.record)
            elif isinstance(effect, PublishPlan):
                plans.append(effect.record)
            elif isinstance(effect, SolveRequested):
                requests.append(effect.request)
        return Said(
            tuple(assignments), tuple(routes), tuple(decisions), tuple(plans), tuple(requests)
        )
