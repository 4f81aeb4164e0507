"""The inputs of all triggers: changes since the last tick that may require a full plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.cluster import Cluster
from autoscaler.estimate.engine_view import EngineView
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.rollout.launch_failures import Failure
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.supply import Supply
from autoscaler.state.controller_state import ControllerState
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger
from topics.alerts import Alert


@dataclass(frozen=True, slots=True)
class TriggerFleet:
    """The fleet after the tick. groups: all groups. lost: silent nodes that had instances.
    failures: launches that failed in this tick. switchable: combos of models below target, and how
    many of each may take other roles now.
    """

    groups: tuple[ServingGroup, ...] = ()
    lost: frozenset[str] = frozenset()
    failures: tuple[Failure, ...] = ()
    switchable: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TriggerInputs:
    """Inputs of one tick. state: the state before the tick. cluster: the present declaration.
    supply: from the latest records. engines: load that engines reported themselves, by model, if an
    alert requested it. replan: triggers for partly applied answers. demand: observed demand,
    including services that route to several models.
    """

    now_ms: int
    state: ControllerState
    cluster: Cluster
    supply: Supply
    views: Mapping[str, ModelView]
    fleet: TriggerFleet = TriggerFleet()
    alerts: tuple[Alert, ...] = ()
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    replan: tuple[Trigger, ...] = ()
    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
