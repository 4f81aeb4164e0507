"""Services that route among several models: choice of thresholds, targets of their models, and
drift.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Mode
from autoscaler.domain.quality_route import QualityRoute
from autoscaler.domain.reason import Reason
from autoscaler.estimate.model_demand import UNKNOWN_DEMAND, ModelDemand
from autoscaler.estimate.score_drift import current_score_mix, has_drifted
from autoscaler.estimate.window_stats import WindowLengths
from autoscaler.modes.quality.thresholds import (
    adopt_answer,
    advance_splits,
    from_routes,
    route_requests,
    routed_traffic,
    split_routes,
)
from autoscaler.planning.planner_messages import (
    ChosenSplit,
    Outcome,
    PlanAnswer,
    PlanRequest,
    RouteTraffic,
    Urgency,
)
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.replan.triggers import scores_changed
from autoscaler.rollout.supply import Supply
from autoscaler.sizing import scale_out_rules
from autoscaler.state.controller_state import ControllerState, Term
from autoscaler.state.model_state import DemandEstimate, ModelState
from autoscaler.state.model_view import ModelView
from autoscaler.state.quality_state import RoutedTraffic, SplitState
from tests.unit.decide.decide_catalogue import pool, service
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

SCORES = [(i + 0.5) / 400 for i in range(400)]
ROUTE = QualityRoute.from_sample(
    "auto", ("small", "large"), SCORES, [[100 * (1 - s), 90.0] for s in SCORES], 80.0, 10.0, 20
)
CLUSTER = Cluster(
    (pool("l4"),),
    tuple(replace(service(m), mode=Mode.ACT, req_per_s=0.0) for m in ROUTE.models),
    routes=(ROUTE,),
)
MODELS = {s.model: ModelState(DemandEstimate(s.lengths)) for s in CLUSTER.services}
NOW = 1_700_000_000_000
BOUND = Reason(ReasonCode.QUALITY_COSTS_NOTHING, "auto")


def chosen(cut: int) -> ChosenSplit:
    fractions = ROUTE.fractions((cut,), ROUTE.sample)
    return ChosenSplit("auto", (cut,), fractions, 85.0, 5.0, BOUND)


def answered(
    cut: int, splits: dict[str, SplitState]
) -> tuple[dict[str, SplitState], list[Decision]]:
    asks = route_requests(CLUSTER, splits, {}, MODELS, NOW)
    request = PlanRequest(1, Urgency.FULL, NOW, (), routes=asks)
    made = PlanAnswer(1, Urgency.FULL, Outcome.PLANNED, splits=(chosen(cut),))
    found, said = adopt_answer(splits, made, request, CLUSTER, NOW)
    return found, said


def view(model: str, target: float) -> ModelView:
    own = CLUSTER.service(model)
    state = replace(MODELS[model], target=replace(MODELS[model].target, req_per_s=target))
    return ModelView(own, CLUSTER.policy, NOW, NOW, state, UNKNOWN_DEMAND)


def window_demand(counts: dict[int, int], long: dict[int, int] | None = None) -> ModelDemand:
    return ModelDemand(
        local_lengths=WindowLengths(classes=counts),
        long_lengths=WindowLengths(classes=counts if long is None else long),
    )


def test_the_first_thresholds_are_published_at_once_and_use_the_declared_rate() -> None:
    asks = route_requests(CLUSTER, {}, {}, MODELS, NOW)
    assert asks == (RouteTraffic("auto", 10.0, ROUTE.sample, ()),)
    splits, said = answered(12, {})
    assert said[0].codes == (ReasonCode.THRESHOLDS_CHOSEN, ReasonCode.QUALITY_COSTS_NOTHING)
    assert said[0].reason.startswith("small 60.0%, large 40.0% (thresholds ")
    (record,) = split_routes(CLUSTER, splits, {}, 7, NOW)
    assert record.split is not None
    assert (record.split.cuts, record.split.shares) == ((12,), (0.6, 0.4))
    assert routed_traffic(CLUSTER, splits, {})["small"].least_req_per_s == 6.0
    assert list(split_routes(CLUSTER, splits, {"auto": record}, 7, NOW)) == []
    taken_over = from_routes(CLUSTER, {"auto": record}, NOW + 1000)
    assert (taken_over["auto"].cuts, taken_over["auto"].changed_ms) == ((12,), NOW)
    (asked,) = route_requests(CLUSTER, taken_over, {}, MODELS, NOW + 1000)
    assert asked.recently_moved


def test_new_thresholds_wait_for_the_fleet_for_a_limited_time() -> None:
    splits, _ = answered(12, {})
    splits, said = answered(8, splits)
    assert said
    assert splits["auto"].cuts == (12,)
    views = {"small": view("small", 6.0), "large": view("large", 6.0)}  # no instance is ready
    same, said_now = advance_splits(splits, views, CLUSTER, NOW + 1000)
    assert (same["auto"].cuts, said_now) == ((12,), [])
    late, words = advance_splits(splits, views, CLUSTER, NOW + 601_000)
    assert late["auto"].cuts == (8,)
    assert ReasonCode.FLEET_NOT_READY in words[0].codes
    enough = {"small": view("small", 0.0), "large": view("large", 0.0)}
    ready, words = advance_splits(splits, enough, CLUSTER, NOW + 1000)
    assert ready["auto"].cuts == (8,)
    assert ReasonCode.THRESHOLDS_IN_FORCE in words[0].codes


def test_thresholds_of_unmanaged_models_are_not_published() -> None:
    watched = replace(
        CLUSTER, services=tuple(replace(s, mode=Mode.RECOMMEND) for s in CLUSTER.services)
    )
    splits, _ = answered(12, {})
    assert list(split_routes(watched, splits, {}, 7, NOW)) == []


def test_capacity_is_planned_before_a_model_gets_a_larger_share() -> None:
    moving = replace(view("large", 2.0), routed=RoutedTraffic("auto", 1.0, 6.0))
    proposal = scale_out_rules.routed_traffic(moving)
    assert proposal is not None
    assert proposal.req_per_s == 6.0
    assert proposal.is_proven
    held = replace(view("large", 8.0), routed=RoutedTraffic("auto", 1.0, 6.0))
    assert scale_out_rules.routed_traffic(held) is None
    assert scale_out_rules.routed_traffic(view("large", 2.0)) is None


def test_thresholds_are_requested_at_once_and_after_a_shift_of_scores() -> None:
    def fired(
        splits: dict[str, SplitState], counts: dict[int, int], after_s: int = 120
    ) -> list[Reason]:
        state = ControllerState(Term(NOW), splits=splits)
        demand = {"auto": window_demand(counts)}
        news = TriggerInputs(NOW + after_s * 1000, state, CLUSTER, Supply(), {}, demand=demand)
        return [trigger.why for trigger in scores_changed(news)]

    usual, shifted = dict.fromkeys(range(20), 20), {19: 400}
    assert fired({}, {}) == [Reason(ReasonCode.NO_THRESHOLDS, "auto")]
    splits, _ = answered(12, {})
    assert fired(splits, usual) == []
    assert fired(splits, shifted) == [Reason(ReasonCode.SCORES, "auto")]
    assert fired(splits, shifted, after_s=119) == []  # half of the window is from before the shift


def test_changed_thresholds_stay_unless_scores_drift() -> None:
    splits, _ = answered(12, {})

    def rests(after_s: int, counts: dict[int, int]) -> bool:
        demand = {"auto": window_demand(counts)}
        (ask,) = route_requests(CLUSTER, splits, demand, MODELS, NOW + after_s * 1000)
        return ask.recently_moved

    usual, shifted = dict.fromkeys(range(20), 20), {19: 400}
    assert rests(599, usual)
    assert not rests(600, usual)
    assert rests(119, shifted)
    assert not rests(120, shifted)


def test_a_shift_of_scores_is_distinguished_from_chance() -> None:
    usual = dict.fromkeys(range(20), 20)
    shifted = {k: 20 + 60 * (k >= 14) for k in range(20)}
    assert not has_drifted(ROUTE, ROUTE.sample, ROUTE.mix(usual | {3: 26, 8: 12}))
    assert has_drifted(ROUTE, ROUTE.sample, ROUTE.mix(shifted))
    assert not has_drifted(
        ROUTE, ROUTE.sample, ROUTE.mix({19: 30})
    )  # too few requests for a conclusion
    unscored = {-1: 200} | usual
    assert has_drifted(ROUTE, ROUTE.sample, ROUTE.mix(unscored))


def test_the_mix_uses_the_longest_window_without_a_shift() -> None:
    usual = dict.fromkeys(range(20), 100)
    shifted = {19: 500}
    assert current_score_mix(ROUTE, UNKNOWN_DEMAND) == ROUTE.sample
    assert current_score_mix(ROUTE, window_demand({0: 20}, {0: 50})) == ROUTE.sample
    assert (
        current_score_mix(ROUTE, window_demand(dict.fromkeys(range(20), 10), usual)).requests
        == 2000
    )
    assert current_score_mix(ROUTE, window_demand(shifted, usual)) == ROUTE.mix(shifted)
