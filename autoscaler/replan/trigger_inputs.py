"""What happened since the last tick, as far as it can call for a new plan.

Owns the two values. A trigger reads news and says for which models, and why, all of them should be
planned anew; how often that happens is for `triggers.limits`.
"""

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
class TriggerInputs:
    """One tick's news.

    state: as the tick found it. cluster: as declared now. supply: after the latest records.
    lost: nodes that ran something and are not heard of now. engines: by model, where somebody asked
    them. failures: launches that were given up in this tick. replan: for models of which a part of
    an answer was left out. demand: as observed, of services that stand
    for several models too. nodes: per pool, under what counts; planned_nodes: the same as the last
    full plan left it (None: none was made). groups: all that stand somewhere after this tick.
    switchable: combos of models that are short, with how many of each may take other roles now.
    """

    now_ms: int
    state: ControllerState
    cluster: Cluster
    supply: Supply
    views: Mapping[str, ModelView]
    lost: frozenset[str] = frozenset()
    groups: tuple[ServingGroup, ...] = ()
    nodes: Mapping[str, int] = field(default_factory=dict)
    planned_nodes: Mapping[str, int] | None = None
    switchable: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    alerts: tuple[Alert, ...] = ()
    engines: Mapping[str, EngineView] = field(default_factory=dict)
    replan: tuple[Trigger, ...] = ()
    demand: Mapping[str, ModelDemand] = field(default_factory=dict)
