"""Services that route to several models: their rates, threshold changes and the time when
thresholds take effect.

Thresholds are chosen with the plan (`modes.quality.route_choice`). They take effect when the fleet
is ready, so that a model has its capacity before it gets more requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Mode, Policy, Service
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import BLOCK_S, since_first_arrival
from autoscaler.estimate.change_point import RateEstimate, current_rate
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.score_drift import current_score_mix, has_drifted
from autoscaler.planning.planner_messages import ChosenSplit, PlanAnswer, PlanRequest, RouteTraffic
from autoscaler.replan.rate_limit import thresholds_may_move
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import SLIVER, ModelView
from autoscaler.state.quality_state import RoutedTraffic, SplitState
from autoscaler.tick.route_hooks import Demands, Splits
from topics.decisions import Decision
from topics.reason_codes import ReasonCode
from topics.routing import Routes

_NOWHERE = SplitState()
# multiple of the distance from the mean to its 95% bound, about four standard deviations
_STD_MULTIPLE = 2.4


def route_requests(
    cluster: Cluster,
    splits: Splits,
    demands: Demands,
    models: Mapping[str, ModelState],
    now_ms: int,
) -> tuple[RouteTraffic, ...]:
    """The traffic of each service, as input of a full plan.

    The planned rate of a service is the sum, over its models, of the part of the target that serves
    this service. So a split that only moves requests is planned with the same headroom as the
    present split.
    """
    found = []
    for route in cluster.routes:
        demand = demands.get(route.name, UNKNOWN_DEMAND)
        rate, mix = _rate(route, demand, cluster.policy), current_score_mix(route, demand)
        known = splits.get(route.name, _NOWHERE)
        held = 0.0
        for model, part in zip(route.models, route.fractions(known.cuts, mix) if known.cuts else (),
                               strict=False):  # fmt: skip
            routed = part * rate.req_per_s
            service = cluster.service(model)
            own = _least_own_rate(service, models[model], demands, routed, cluster.policy)
            held += max(0.0, models[model].target.req_per_s - own)
        rate_asked = min(max(held, rate.low), rate.high)
        rests = _is_unchanged(route, known, demand, cluster.policy, now_ms)
        found.append(RouteTraffic(route.name, rate_asked, mix, known.target_cuts, rests))
    return tuple(found)


def _is_unchanged(
    route: QualityRoute, known: SplitState, demand: ModelDemand, policy: Policy, now_ms: int
) -> bool:
    """Whether the thresholds moved so recently that a lower cost is no reason to move them
    again."""
    if not known.target_cuts or not known.changed_ms:
        return False
    now = route.mix(demand.local_lengths.classes)
    drifted = known.mix is not None and has_drifted(route, known.mix, now)
    return not thresholds_may_move(known.changed_ms, now_ms, drifted, policy.local_window_s)


def _least_own_rate(
    service: Service, state: ModelState, demands: Demands, routed_req_per_s: float, policy: Policy
) -> float:
    """Lower bound in requests/s of the rate that a model gets directly from clients, not through
    the service."""
    if not state.estimate.rate_observed:
        return service.req_per_s
    seen = current_rate(demands.get(service.model, UNKNOWN_DEMAND), policy)
    return max(0.0, seen.low - routed_req_per_s)


def routed_traffic(cluster: Cluster, splits: Splits, demands: Demands) -> dict[str, RoutedTraffic]:
    """By model: the present and the planned rate of requests through services."""
    found = {}
    for route in cluster.routes:
        known = splits.get(route.name)
        if known is None or not known.cuts:
            continue
        demand = demands.get(route.name, UNKNOWN_DEMAND)
        rate, planned = _rate(route, demand, cluster.policy), dict(known.planned)
        sure = max(0.0, rate.req_per_s - _STD_MULTIPLE * (rate.req_per_s - rate.low))
        parts = route.fractions(known.cuts, current_score_mix(route, demand))
        for model, part in zip(route.models, parts, strict=True):
            changing = planned.get(model, 0.0) if known.cuts != known.target_cuts else 0.0
            found[model] = RoutedTraffic(route.name, sure * part, changing)
    return found


def adopt_answer(
    splits: Splits, answer: PlanAnswer, request: PlanRequest, cluster: Cluster, now_ms: int
) -> tuple[Splits, list[Decision]]:
    """`splits` with the thresholds of `answer`, and the decisions about them. The first thresholds
    of a service take effect at once, because gateways then accept the service's name and queue its
    requests until instances are ready."""
    found, decisions = dict(splits), []
    mixes = {ask.name: ask.mix for ask in request.routes}
    for chosen in answer.splits:
        route = next((route for route in cluster.routes if route.name == chosen.name), None)
        if route is None:
            continue
        before = found.get(chosen.name, _NOWHERE)
        changed = chosen.cuts != before.target_cuts
        found[chosen.name] = SplitState(
            before.cuts or chosen.cuts,
            chosen,
            mixes[chosen.name],
            now_ms if changed else before.changed_ms,
            tuple((d.model, d.req_per_s) for d in answer.demands if d.model in route.models),
        )
        if changed:
            decisions.append(_decision(route, chosen, cluster, now_ms))
    return found, decisions


def advance_splits(
    splits: Splits, views: Mapping[str, ModelView], cluster: Cluster, now_ms: int
) -> tuple[Splits, list[Decision]]:
    """`splits`, in which planned thresholds take effect if their capacity is ready or overdue. A
    split that needs approval waits for its capacity without a time limit."""
    found, decisions = dict(splits), []
    for route in cluster.routes:
        known = found.get(route.name)
        if known is None or known.chosen is None or known.cuts == known.target_cuts:
            continue
        waited_ms = now_ms - known.changed_ms
        acts = all(s.mode is Mode.ACT for s in cluster.services if s.model in route.models)
        late = acts and waited_ms >= cluster.policy.start_timeout_s * 1000
        ready = waited_ms > 0 and all(_is_ready(views[m]) for m in route.models if m in views)
        if not (late or ready) or not is_managed(route, cluster):
            continue
        found[route.name] = replace(known, cuts=known.target_cuts)
        marks = tuple(route.thresholds(known.target_cuts))
        because = (Reason(ReasonCode.FLEET_NOT_READY, route.name),) if late else ()
        code = ReasonCode.THRESHOLDS_IN_FORCE
        decisions.append(
            notice(route.name, Reason(code, route.name, (), marks, "", because), now_ms)
        )
    return (found if decisions else splits), decisions


def split_routes(
    cluster: Cluster,
    splits: Splits,
    published: Mapping[str, Routes],
    leader_token: int,
    now_ms: int,
) -> Iterable[Routes]:
    """Changed routes of services that route to several models."""
    for route in cluster.routes:
        known = splits.get(route.name)
        if known is None or not known.cuts or not is_managed(route, cluster):
            continue
        split = route.split(known.cuts, known.mix or route.sample)
        last = published.get(route.name)
        if last is None or last.leader_token != leader_token or last.split != split:
            generation = last.generation + 1 if last else 1
            yield Routes(route.name, generation, leader_token, now_ms, 0.0, 0.0, split=split)


def from_routes(
    cluster: Cluster, published: Mapping[str, Routes], now_ms: int
) -> dict[str, SplitState]:
    """Thresholds from the last published routes, with the time of the routes. Omitted if their
    score classes are no longer declared."""
    found = {}
    for route in cluster.routes:
        last = published.get(route.name)
        split = last.split if last else None
        if split is not None and (split.models, split.edges) == (route.models, route.edges):
            issued_ms = min(last.issued_ms, now_ms) if last else 0
            found[route.name] = SplitState(split.cuts, changed_ms=issued_ms)
    return found


def restored_splits(
    cluster: Cluster,
    published: Mapping[str, Routes],
    remembered: Splits,
    now_ms: int,
) -> dict[str, SplitState]:
    """The thresholds that a leader remembers, or those in the `published` routes if its memory has
    none for the present declaration of the service."""
    routed = from_routes(cluster, published, now_ms)
    found = dict(routed)
    for route in cluster.routes:
        memory, last = remembered.get(route.name), published.get(route.name)
        if memory is None or (last is not None and last.split and route.name not in routed):
            continue
        each = [memory.cuts, *((memory.chosen.cuts,) if memory.chosen is not None else ())]
        fitting = all(
            len(cuts) in (0, len(route.models) - 1)
            and list(cuts) == sorted(cuts)
            and max(cuts, default=0) <= len(route.shares)
            for cuts in each
        )
        mixed = memory.mix is None or len(memory.mix.shares) == len(route.shares)
        if fitting and mixed and {model for model, _ in memory.planned} <= set(route.models):
            found[route.name] = memory
    return found


def is_managed(route: QualityRoute, cluster: Cluster) -> bool:
    """Whether Shoal may change all models of `route`."""
    return all(s.managed for s in cluster.services if s.model in route.models)


def _decision(route: QualityRoute, chosen: ChosenSplit, cluster: Cluster, now_ms: int) -> Decision:
    marks = route.thresholds(chosen.cuts)
    figures = *chosen.fractions, *marks, chosen.quality, route.at_least
    why = Reason(
        ReasonCode.THRESHOLDS_CHOSEN, route.name, route.models, figures, because=(chosen.bound_by,)
    )
    decision = notice(route.name, why, now_ms, kind="replan")
    return replace(decision, applied=is_managed(route, cluster))


def _is_ready(view: ModelView) -> bool:
    ready = sum(combo.req_per_s for combo in view.serving.ready)
    held = ready * view.service.utilization * view.state.capacity.derate
    return held >= view.state.target.req_per_s * (1.0 - SLIVER)


def _rate(route: QualityRoute, demand: ModelDemand, policy: Policy) -> RateEstimate:
    """The present rate of the service; the declared rate until requests have arrived for a whole
    local window."""
    if BLOCK_S * len(since_first_arrival(demand.blocks)) < policy.local_window_s:
        return RateEstimate(route.req_per_s, route.req_per_s, route.req_per_s, 0, None)
    return current_rate(demand, policy)
