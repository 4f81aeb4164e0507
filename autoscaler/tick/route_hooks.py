"""Hooks of a tick into mode quality, for clusters with services that route to several models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.mode_hook import ModeHook
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, RouteTraffic
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView
from autoscaler.state.quality_state import RoutedTraffic, SplitState
from topics.decisions import Decision
from topics.routing import Routes

Demands = Mapping[str, ModelDemand]
Splits = Mapping[str, SplitState]

ROUTED_TRAFFIC: ModeHook[[Cluster, Splits, Demands], dict[str, RoutedTraffic]] = ModeHook("quality")
"""By model: the present and the planned rate of requests through services."""

ADVANCE_SPLITS: ModeHook[
    [Splits, Mapping[str, ModelView], Cluster, int], tuple[Splits, list[Decision]]
] = ModeHook("quality")
"""The splits, in which planned thresholds take effect if their capacity is ready or overdue."""

ADOPT_ANSWER: ModeHook[
    [Splits, PlanAnswer, PlanRequest, Cluster, int], tuple[Splits, list[Decision]]
] = ModeHook("quality")
"""The splits with the thresholds of an answer, and the decisions about them."""

ROUTE_REQUESTS: ModeHook[
    [Cluster, Splits, Demands, Mapping[str, ModelState], int], tuple[RouteTraffic, ...]
] = ModeHook("quality")
"""The traffic of each service, as input of a full plan."""

SPLIT_ROUTES: ModeHook[[Cluster, Splits, Mapping[str, Routes], int, int], Iterable[Routes]] = (
    ModeHook("quality")
)
"""Changed routes of services that route to several models."""

RESTORED_SPLITS: ModeHook[[Cluster, Mapping[str, Routes], Splits, int], dict[str, SplitState]] = (
    ModeHook("quality")
)
"""The splits of a new leader, from published routes and the splits in its memory."""
