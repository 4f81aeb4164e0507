"""Plans the thresholds of services that route to several models, as part of a full plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.workload import Demand
from autoscaler.modes.quality.answer_quality import Split
from autoscaler.modes.quality.route_choice import choose_split, with_split
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planned_thresholds import PlannedThresholds, Solve
from autoscaler.planning.planner_messages import (
    ChosenSplit,
    PlanRequest,
    RouteTraffic,
    Urgency,
)
from autoscaler.planning.planning_problem import PlanOptions
from autoscaler.planning.rollout_feasibility import RollablePlan

_Fleet = tuple[dict[str, Demand], RollablePlan]


def plan_thresholds(
    request: PlanRequest,
    routes: Iterable[QualityRoute],
    demands: dict[str, Demand],
    solve: Solve,
    options: PlanOptions,
) -> PlannedThresholds:
    """The thresholds of all `routes` that `request` plans, one after another. Under a scale-in
    lock, a part of the time remains for a plan of the request itself."""
    asked = _routes_to_plan(request, routes, demands)
    splits = []
    made: RollablePlan | None = None
    for left, (route, ask) in zip(range(len(asked), 0, -1), asked, strict=True):
        own = options.within(1.0 / (left + request.keeps_instances))
        chosen, (demands, made) = _plan_route(route, ask, request, demands, solve, own)
        splits.append(chosen)
    return PlannedThresholds(tuple(splits), demands, made)


def _routes_to_plan(
    request: PlanRequest, routes: Iterable[QualityRoute], demands: Mapping[str, Demand]
) -> list[tuple[QualityRoute, RouteTraffic]]:
    """The services whose thresholds are planned with this request, each with its traffic."""
    asks = {ask.name: ask for ask in request.routes if request.urgency is Urgency.FULL}
    return [
        (route, asks[route.name])
        for route in routes
        if route.name in asks and all(model in demands for model in route.models)
    ]


def _plan_route(
    route: QualityRoute,
    ask: RouteTraffic,
    request: PlanRequest,
    demands: dict[str, Demand],
    solve: Solve,
    options: PlanOptions,
) -> tuple[ChosenSplit, _Fleet]:
    """The thresholds of `route` and the plan for them, chosen together.

    Every split gets an equal part of the time; with less time, later splits would seem more
    expensive than they are. The prices of splits ignore the scale-in lock: under it, the present
    capacity is paid for in any case, and better answers would seem free.
    """
    request = replace(request, scale_in_locked=(), settling=())

    def price(
        split: Split, left: int
    ) -> tuple[tuple[dict[str, Demand], RollablePlan], float, bool]:
        moved = with_split(route, split, ask, demands)
        made = solve(request, moved, options.within(1.0 / left))
        short = made.plan.status is PlanStatus.FAILED or bool(made.plan.shortfall_req_per_s)
        return (moved, made), made.plan.objective_usd_per_h, short

    return choose_split(route, ask, price)
