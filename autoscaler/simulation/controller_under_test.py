"""The production controller (`autoscaler.decide`) as a decider of a simulation.

Builds the observation of a tick and sorts the controller's effects. To simulate a restarted
controller, set `state` to one that was restored from `ledger` and the other records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoscaler.decide import ControllerState, Observation, decide
from autoscaler.estimate.model_demand import ModelDemand, observe_demand
from autoscaler.planning.planner_messages import PlanRequest
from autoscaler.simulation.decider import DeciderInput, DeciderOutput, PlannedRates
from autoscaler.state.controller_state import Term
from autoscaler.state.effects import (
    PublishAssignment,
    PublishDecision,
    PublishLedger,
    PublishPlan,
    PublishRoutes,
    SolveRequested,
)
from topics.controls import Control
from topics.decisions import Decision, PlanRecord
from topics.fleet import Assignment
from topics.ledger import LedgerEntry
from topics.routing import Routes

DemandFilter = Callable[[Mapping[str, ModelDemand]], Mapping[str, ModelDemand]]


class ControllerUnderTest:
    """Calls `decide` and keeps its state between ticks.

    demand_filter: changes the demand that the controller observes, so that experiments can omit
    parts of it; None: no change. controls: commands of operators, by subject.
    """

    def __init__(self, demand_filter: DemandFilter | None = None) -> None:
        self.state: ControllerState | None = None
        self.ledger: dict[str, LedgerEntry] = {}
        self.controls: dict[str, Control] = {}
        self._demand_filter = demand_filter
        self._planned: dict[str, PlannedRates] = {}

    def decide(self, inputs: DeciderInput, now_ms: int) -> DeciderOutput:
        """The output of one tick. now_ms: domain time in ms."""
        cluster = inputs.cluster
        models = [service.model for service in cluster.services]
        models += [route.name for route in cluster.routes]
        demand: Mapping[str, ModelDemand] = observe_demand(
            inputs.windows, models, cluster.policy, now_ms
        )
        observation = Observation(
            demand=self._demand_filter(demand) if self._demand_filter else demand,
            statuses=inputs.statuses,
            availability=inputs.availability,
            prices=inputs.prices,
            answers=inputs.answers,
            alerts=inputs.alerts,
            controls=self.controls,
        )
        state = self.state or ControllerState(Term(now_ms))
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
            elif isinstance(effect, PublishLedger):
                self.ledger[effect.record.key] = effect.record
            elif isinstance(effect, PublishPlan):
                plans.append(effect.record)
            elif isinstance(effect, SolveRequested):
                requests.append(effect.request)
        return DeciderOutput(
            tuple(assignments),
            tuple(routes),
            tuple(decisions),
            tuple(plans),
            tuple(requests),
            self._changed_rates(self.state),
        )

    def _changed_rates(self, state: ControllerState) -> dict[str, PlannedRates]:
        changed = {}
        for model, one in state.models.items():
            target = one.target
            rates = PlannedRates(target.needed_req_per_s, target.req_per_s, one.capacity.derate)
            if self._planned.get(model) != rates:
                changed[model] = self._planned[model] = rates
        return changed
