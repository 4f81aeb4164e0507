"""Mode quality: services that route each request to one of several models. Registers its hooks."""

from __future__ import annotations

from autoscaler.modes.quality.planned_thresholds import plan_thresholds
from autoscaler.modes.quality.thresholds import (
    adopt_answer,
    advance_splits,
    restored_splits,
    route_requests,
    routed_traffic,
    split_routes,
)
from autoscaler.planning.planned_thresholds import PLAN_THRESHOLDS
from autoscaler.tick import route_hooks

PLAN_THRESHOLDS.provide(plan_thresholds)
route_hooks.ROUTED_TRAFFIC.provide(routed_traffic)
route_hooks.ADVANCE_SPLITS.provide(advance_splits)
route_hooks.ADOPT_ANSWER.provide(adopt_answer)
route_hooks.ROUTE_REQUESTS.provide(route_requests)
route_hooks.SPLIT_ROUTES.provide(split_routes)
route_hooks.RESTORED_SPLITS.provide(restored_splits)
