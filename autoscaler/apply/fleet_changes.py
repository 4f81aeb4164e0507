"""The changes of all models that one answer, or all approvals of a tick, make to the fleet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.apply.model_change import AppliedChange
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.model_state import ModelState
from autoscaler.state.replan_trigger import Trigger
from topics.decisions import Decision


@dataclass(frozen=True, slots=True)
class AppliedPlan:
    """Fleet, states and decisions after all changes. replan: triggers for models whose part was
    left out. waits: models that wait for room on the plan's nodes, in order."""

    groups: tuple[ServingGroup, ...]
    site: FreeCapacity
    models: Mapping[str, ModelState]
    decisions: tuple[Decision, ...] = ()
    replan: tuple[Trigger, ...] = ()
    waits: tuple[str, ...] = ()


@dataclass(slots=True)
class FleetChanges:
    """Collects the changes model by model. fleet: before any change. site: capacity that is still
    free. groups: by name; models: states."""

    fleet: TickFleet
    site: FreeCapacity
    groups: dict[str, ServingGroup] = field(init=False)
    models: dict[str, ModelState] = field(init=False)
    decisions: list[Decision] = field(default_factory=list)
    replan: list[Trigger] = field(default_factory=list)
    waits: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.groups = {group.name: group for group in self.fleet.groups}
        self.models = dict(self.fleet.models)

    def keep(self, done: AppliedChange, model: str) -> None:
        """Make the change of one model part of the fleet."""
        self.groups, self.site = dict(done.groups), done.site
        self.models[model] = done.state

    def report(self, model: str, told: tuple[Iterable[Decision], ModelState]) -> None:
        """Add decisions about `model`, and the state that remembers them."""
        decisions, self.models[model] = told
        self.decisions += decisions

    def result(self) -> AppliedPlan:
        """All changes so far."""
        return AppliedPlan(
            tuple(self.groups.values()),
            self.site,
            self.models,
            tuple(self.decisions),
            tuple(self.replan),
            tuple(self.waits),
        )
