"""The limits at which single rules and conditions begin and end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.domain.cluster import Mode
from autoscaler.domain.reason import Reason
from autoscaler.domain.rollout_policy import CanaryPolicy, RolloutPolicy
from autoscaler.estimate.change_point import sizing_rate
from autoscaler.estimate.engine_rate import Moment
from autoscaler.estimate.forecast.forecast_state import Forecast, ForecastState
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import GatewayReport
from autoscaler.model.tick_fleet import _settled_ms as settled_ms
from autoscaler.rollout.version_comparison import VersionComparison
from autoscaler.sizing import rules
from autoscaler.sizing.capacity_derating import share_attained, update_derating
from autoscaler.sizing.prediction_drift import drift_veto, expected_s, start_times_s, uncertainty
from autoscaler.sizing.rate_increase import least_order, spans
from autoscaler.sizing.scale_in.conditions import (
    EXCHANGE,
    LOWER_TARGET,
    NO_LOSS,
    REALLOCATION,
    REMOVAL,
    excess_duration_s,
    failed_condition,
    is_unmeasured,
)
from autoscaler.sizing.scale_in.conditions import _keeps_all as keeps_all
from autoscaler.sizing.scale_in.lower_target import lower_target
from autoscaler.sizing.scale_out_rules import (
    burst_headroom,
    declared_workload,
    expected_req_per_s,
    mean_and_burst,
    scale_from_zero,
)
from autoscaler.state.model_state import Capacity, Hysteresis, PredictionDrift, Reversals
from autoscaler.state.model_view import IDLE_RATE, ModelView
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.sizing.target_views import POLICY, T0, stats, view
from topics.reason_codes import ReasonCode

HOUR_MS = 3_600_000
HEARD = GatewayReport("a", "boot", T0, 0, 0)


def steady(rate: float, **changes: Any) -> ModelDemand:
    """Half an hour at `rate`, reported by one gateway."""
    blocks = tuple((10, round(10 * rate)) for _ in range(180))
    recent = tuple((n, round(rate * n)) for n in (1, 2, 5, 10, 30, 60))
    local = stats(round(rate * 120), 120)
    made = ModelDemand(recent, local, blocks=blocks, reported_ms=T0, gateways=(HEARD,))
    return replace(made, **changes)


def with_state(seen: ModelView, **changes: Any) -> ModelView:
    return replace(seen, state=replace(seen.state, **changes))


def with_service(seen: ModelView, **changes: Any) -> ModelView:
    return replace(seen, service=replace(seen.service, **changes))


def causes(seen: ModelView, conditions: Any) -> list[ReasonCode]:
    why = failed_condition(seen, conditions)
    return [] if why is None else [one.code for one in why.because]


def test_a_frozen_model_loses_nothing() -> None:
    held = view(steady(3.0), frozen=Reason(ReasonCode.PERIOD, "chat"))
    for conditions in (REMOVAL, EXCHANGE, REALLOCATION, NO_LOSS):
        assert causes(held, conditions) == [ReasonCode.PERIOD]
        assert causes(view(steady(3.0)), conditions) == []
    assert causes(held, LOWER_TARGET) == []


def test_too_many_reversals_prevent_removals_but_no_exchange() -> None:
    """Two an hour over two hours: with three reversals, the next two would exceed four."""
    three = Hysteresis(Reversals("out", (T0 - 3, T0 - 2, T0 - 1)))
    turned = with_state(view(steady(3.0)), hysteresis=three)
    assert causes(turned, REMOVAL) == [ReasonCode.TOO_MANY_REVERSALS]
    assert causes(turned, EXCHANGE) == []
    two = Hysteresis(Reversals("out", (T0 - 2, T0 - 1)))
    assert causes(with_state(turned, hysteresis=two), REMOVAL) == []
    inward = Hysteresis(Reversals("in", (T0 - 3, T0 - 2, T0 - 1)))
    assert causes(with_state(turned, hysteresis=inward), REMOVAL) == []


@pytest.mark.parametrize(("runs_ms", "waits"), [(119_999, True), (120_000, False)])
def test_a_new_controller_waits_for_a_full_window(runs_ms: int, waits: bool) -> None:
    seen = view(steady(3.0), started_ms=T0 - runs_ms)
    assert causes(seen, LOWER_TARGET) == ([ReasonCode.NO_FULL_WINDOW] if waits else [])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"local": stats(360, 120, age_ms=1999)}, None),
        ({"local": stats(360, 120, age_ms=2000)}, ReasonCode.TELEMETRY_STALE),
        ({"local": stats(324, 108)}, None),
        ({"local": stats(321, 107)}, ReasonCode.TELEMETRY_GAPS),
    ],
)
def test_missing_telemetry_prevents_a_lower_target(
    changes: dict[str, Any], code: ReasonCode | None
) -> None:
    seen = view(steady(3.0, **changes))
    assert causes(seen, LOWER_TARGET) == ([] if code is None else [code])
    assert (code is ReasonCode.TELEMETRY_STALE) == bool(causes(seen, REALLOCATION))


def test_missed_slos_prevent_removals_only() -> None:
    """At a percentile of 0.95, 342 of 360 must attain the SLO."""
    for attained, strained in ((342, False), (341, True)):
        seen = view(steady(3.0, local=stats(360, 120, attained)))
        expected = [ReasonCode.SLO_STRAINED] if strained else []
        assert causes(seen, REMOVAL) == causes(seen, EXCHANGE) == expected
        assert causes(seen, LOWER_TARGET) == []


DERATED = Capacity(derate=0.7, drift=PredictionDrift(worse_since_ms=T0 - 86_400_000))


def test_drifting_predictions_need_approval_in_mode_act_alone() -> None:
    seen = with_state(view(steady(6.0)), capacity=DERATED)
    assert causes(seen, REMOVAL) == [ReasonCode.LESS_CAPACITY]
    assert causes(with_service(seen, mode=Mode.APPROVE), REMOVAL) == []


@pytest.mark.parametrize(("load", "vetoes"), [(4.0, True), (3.99, False)])
def test_low_capacity_is_a_reason_only_under_load(load: float, vetoes: bool) -> None:
    state = with_state(view(steady(6.0)), capacity=DERATED).state
    assert bool(drift_veto(state, T0, load, 8.0)) is vetoes


def test_late_starts_are_a_reason_at_any_load_and_early_ones_are_not() -> None:
    base = view(steady(6.0))
    since = T0 - 86_400_000
    late = PredictionDrift(start_s=90.0, predicted_s=60.0, worse_since_ms=since)
    (why,) = drift_veto(with_state(base, capacity=Capacity(drift=late)).state, T0, 0.0, 8.0)
    assert (why.code, why.quantities) == (ReasonCode.START_TIMES, (90.0, 60.0))
    early = replace(late, start_s=30.0)
    state = with_state(base, capacity=Capacity(drift=early)).state
    assert drift_veto(state, T0, 0.0, 8.0) == ()
    assert [one.code for one in uncertainty(state)] == [ReasonCode.START_TIMES]
    fresh = replace(late, worse_since_ms=0)
    assert drift_veto(with_state(base, capacity=Capacity(drift=fresh)).state, T0, 0.0, 8.0) == ()


def test_a_measured_difference_is_added_to_predicted_starts() -> None:
    late = PredictionDrift(start_s=90.0, predicted_s=60.0)
    state = with_state(view(steady(6.0)), capacity=Capacity(drift=late)).state
    assert expected_s(state, 60.0) == 90.0
    assert expected_s(state, 100.0) == 130.0
    assert expected_s(state, 30.0) == 45.0, "a half of the prediction, a half of the difference"
    assert expected_s(state, 0.0) == 0.0
    slow, other = simple("chat", pool(), start_s=100.0), simple("code", pool(), start_s=20.0)
    quick = simple("chat", pool(), start_s=60.0)
    assert start_times_s((*slow, *other, *quick), {"chat": state}) == {"chat": 130.0, "code": 20.0}


@pytest.mark.parametrize(
    ("changes", "proposes"),
    [
        ({}, True),
        ({"groups": 1}, False),
        ({"raw_req_per_s": 1.0}, False),
    ],
)
def test_the_first_request_wakes_a_model_without_instances(
    changes: dict[str, Any], proposes: bool
) -> None:
    idle = view(ModelDemand(local=stats(1, 120)), groups=0, raw_req_per_s=0.0)
    found = scale_from_zero(replace(idle, **changes))
    assert (found is not None) is proposes


def test_the_rate_of_a_wake_is_proven_by_arrivals_and_refusals() -> None:
    idle = view(ModelDemand(local=stats(0, 120)), groups=0, raw_req_per_s=0.0)
    assert scale_from_zero(idle) is None
    assert scale_from_zero(replace(idle, demand=ModelDemand())) is None
    refused = replace(stats(2, 1), refused=3)
    found = scale_from_zero(replace(idle, demand=ModelDemand(local=refused)))
    assert found is not None and 1.9 < found.req_per_s < 2.0, "five requests in a second"
    one = scale_from_zero(replace(idle, demand=ModelDemand(local=stats(1, 120))))
    assert one is not None and one.req_per_s == IDLE_RATE


def test_the_declared_rate_counts_until_the_rate_is_observed() -> None:
    seen = with_service(view(steady(3.0)), req_per_s=5.0)
    fresh = with_state(seen, estimate=replace(seen.state.estimate, rate_observed=False))
    found = declared_workload(fresh)
    assert found is not None and (found.req_per_s, found.why.quantities) == (5.0, (5.0,))
    assert declared_workload(seen) is None
    assert declared_workload(with_service(fresh, req_per_s=0.0)) is None
    small = declared_workload(with_service(fresh, req_per_s=0.5))
    assert small is not None and small.req_per_s == 0.5


@pytest.mark.parametrize(
    ("lower", "age_ms", "expected"),
    [
        (9.0, 0, 9.0),
        (9.0, 120_000, 9.0),
        (9.0, 120_001, 0.0),
        (IDLE_RATE, 0, 0.0),
    ],
)
def test_a_forecast_counts_for_two_minutes(lower: float, age_ms: int, expected: float) -> None:
    made = Forecast(lower, T0 - age_ms, 0.0, 2.0, "last")
    seen = view(steady(3.0))
    outlook = ForecastState(forecast=made)
    told = with_state(seen, estimate=replace(seen.state.estimate, forecast=outlook))
    bound = made.lower_bound_req_per_s if expected else 0.0
    assert expected_req_per_s(told) == bound


@pytest.mark.parametrize(("scale_in_s", "expected"), [(60.0, 120), (600.0, 600), (3600.0, 1790)])
def test_an_excess_lasts_between_the_local_and_the_long_window(
    scale_in_s: float, expected: int
) -> None:
    declared = service(scale_in_after_s=scale_in_s)
    assert excess_duration_s(declared, POLICY) == expected
    short = replace(POLICY, surge_window_s=5, local_window_s=10, global_window_s=15)
    assert excess_duration_s(declared, short) == 10


def silent(seconds: int, **changes: Any) -> ModelView:
    """A model with 8 planned req/s and no request for `seconds`; one request/s before."""
    empty = seconds // 10
    blocks = (*((10, 10) for _ in range(180 - empty)), *((10, 0) for _ in range(empty)))
    demand = ModelDemand(
        tuple((n, 0) for n in (1, 2, 5, 10, 30, 60)),
        stats(0, 120),
        blocks=blocks,
        reported_ms=T0,
        gateways=(HEARD,),
    )
    return with_service(view(demand, started_ms=T0 - HOUR_MS), **changes)


def test_a_model_without_traffic_goes_to_zero_after_zero_after() -> None:
    """With a floor, its target is zero at once, because the floor keeps an instance."""
    zero: dict[str, Any] = {"min_instances": 0, "zero_after_s": 1200.0}
    found = lower_target(silent(1200, **zero))
    assert found is not None and found.req_per_s == 0.0
    assert (found.why.code, found.why.quantities) == (ReasonCode.IDLE, (1200.0,))
    early = lower_target(silent(1190, **zero))
    assert early is not None and early.req_per_s == IDLE_RATE
    assert early.why.quantities == (600,)
    kept = lower_target(silent(600, min_instances=1))
    assert kept is not None and kept.req_per_s == 0.0
    assert lower_target(silent(590, min_instances=1)) is None or (
        lower_target(silent(590, min_instances=1)).req_per_s > 0.0  # type: ignore[union-attr]
    )


def test_a_target_falls_only_by_a_hundredth_or_more() -> None:
    seen = view(steady(3.0))
    found = lower_target(seen)
    assert found is not None
    at = replace(seen.state.target, req_per_s=found.req_per_s / 0.989)
    assert lower_target(with_state(seen, target=at)) is not None
    near = replace(seen.state.target, req_per_s=found.req_per_s / 0.991)
    assert lower_target(with_state(seen, target=near)) is None
    assert found.why.quantities == (found.req_per_s, 0.8, 10.0, 600)


@pytest.mark.parametrize(("gaps", "lowers"), [(6, True), (7, False)])
def test_a_tenth_of_the_seconds_may_be_unreported(gaps: int, lowers: bool) -> None:
    blocks = tuple((0, 0) if at < gaps else (10, 30) for at in range(60))
    whole = steady(3.0)
    seen = view(replace(whole, blocks=(*whole.blocks[:120], *blocks)))
    assert (lower_target(seen) is not None) is lowers


def test_instances_without_memory_are_held_for_one_window_and_the_excess_period() -> None:
    base = view(steady(3.0))
    without = with_state(base, target=replace(base.state.target, restart_hold=True))
    for runs_s, unmeasured, kept in (
        (119.9, True, True), (120.0, False, True), (599.9, False, True), (600.0, False, False),
    ):  # fmt: skip
        seen = replace(without, started_ms=T0 - round(runs_s * 1000))
        assert is_unmeasured(seen) is unmeasured
        assert keeps_all(seen) is kept
    assert not keeps_all(replace(base, started_ms=T0))


def test_capacity_settles_once_all_is_ready_and_no_queue_drains() -> None:
    moments = Moment(T0 - 60_000, 400), Moment(T0 - 20_000, 350)
    seen = with_state(
        view(steady(3.0)), estimate=replace(view(steady(3.0)).state.estimate, moments=moments)
    )
    before_ms = seen.state.capacity.settled_ms
    assert settled_ms(seen.state, False, 400, T0) == 0
    assert settled_ms(seen.state, True, 400, T0) == before_ms
    assert settled_ms(seen.state, True, 300, T0) == T0 - 20_000
    fresh = replace(seen.state, capacity=Capacity())
    assert settled_ms(fresh, True, 400, T0) == T0


def test_without_bursts_the_mean_needs_no_headroom() -> None:
    seen = view(steady(9.0))
    assert burst_headroom(seen) is None
    mean, burst = mean_and_burst(seen.demand.blocks, seen.service.percentile)
    assert mean == burst == 9.0
    assert mean_and_burst((), 0.95) == (0.0, 0.0)


def test_the_share_of_attained_requests_counts_all_that_ended() -> None:
    assert share_attained(view(ModelDemand())) == (1.0, 0)
    assert share_attained(view(ModelDemand(local=stats(0, 120)))) == (1.0, 0)
    mixed = replace(stats(80, 120, attained=60), failures=15, refused=5)
    assert share_attained(view(ModelDemand(local=mixed))) == (0.6, 100)


@pytest.mark.parametrize(
    ("settled_s", "derated_s", "derates"),
    [(240.0, 240.0, True), (239.0, 240.0, False), (240.0, 239.0, False)],
)
def test_misses_count_once_the_fleet_and_the_factor_have_settled(
    settled_s: float, derated_s: float, derates: bool
) -> None:
    missed = ModelDemand((), stats(840, 120, attained=420))
    capacity = Capacity(
        settled_ms=T0 - round(settled_s * 1000), derated_ms=T0 - round(derated_s * 1000)
    )
    seen = with_state(view(missed), capacity=capacity)
    assert (update_derating(seen).capacity.derate < 1.0) is derates
    starting = replace(seen, serving=replace(seen.serving, nothing_starting=False))
    assert update_derating(starting).capacity.derate == 1.0


def test_capacity_recovers_to_one_at_most() -> None:
    full = ModelDemand((), stats(1200, 120))
    for derate in (0.99, 0.8):
        capacity = Capacity(derate=derate, settled_ms=T0 - HOUR_MS, derated_ms=T0 - HOUR_MS)
        found = update_derating(with_state(view(full), capacity=capacity))
        assert found.capacity.derate == 1.0 and found.capacity.derated_ms == T0
    empty = with_state(view(full), capacity=capacity)
    none = update_derating(replace(empty, raw_req_per_s=0.0))
    assert none.capacity.derate == 0.8


def test_a_lasting_shortfall_is_ordered_with_a_margin() -> None:
    assert least_order(7.0, 8.0) == 7.0 and least_order(8.0, 8.0) == 8.0
    assert least_order(8.01, 8.0) == pytest.approx(8.0 * 1.001 / 0.975)
    assert least_order(9.0, 8.0) == 9.0


def test_longer_spans_grow_by_half() -> None:
    found = list(spans(steady(3.0)))
    assert found[:7] == [(1, 3), (2, 6), (5, 15), (10, 30), (30, 90), (60, 180), (120, 360)]
    assert found[7:] == [
        (180, 540),
        (270, 810),
        (410, 1230),
        (620, 1860),
        (930, 2790),
        (1400, 4200),
    ]


def test_a_rate_of_half_a_minute_is_sized_slightly_above_its_mean() -> None:
    found = sizing_rate(steady(9.0), POLICY)
    assert found.req_per_s == pytest.approx(9.0, rel=0.01)
    assert found.req_per_s < found.likely_req_per_s < found.high_req_per_s
    share = (found.likely_req_per_s - found.req_per_s) / (found.high_req_per_s - found.req_per_s)
    assert share == pytest.approx(0.4)
    none = sizing_rate(ModelDemand(), POLICY)
    assert (none.req_per_s, none.likely_req_per_s) == (0.0, 0.0)


def test_a_few_seconds_count_as_a_mean_over_half_a_minute() -> None:
    few = ModelDemand(((1, 9), (2, 18), (5, 45)), stats(45, 5), reported_ms=T0)
    assert sizing_rate(few, POLICY).req_per_s == pytest.approx(45 / 30)


def test_a_declared_rate_is_dropped_after_ten_minutes_of_silence() -> None:
    quiet = silent(1800)
    fresh = with_state(quiet, estimate=replace(quiet.state.estimate, rate_observed=False))
    for runs_s, observed in ((1200.0, True), (1199.0, False)):
        seen = replace(fresh, started_ms=T0 - round(runs_s * 1000))
        assert rules.update_target(seen).estimate.rate_observed is observed
    short = with_service(fresh, scale_in_after_s=60.0)
    for runs_s, observed in ((600.0, True), (599.0, False)):
        seen = replace(short, started_ms=T0 - round(runs_s * 1000))
        assert rules.update_target(seen).estimate.rate_observed is observed


def test_traffic_for_a_local_window_replaces_the_declared_rate() -> None:
    for blocks, observed in ((12, True), (11, False)):
        demand = steady(3.0, blocks=((10, 30),) * blocks)
        seen = view(demand, started_ms=T0 - 10_000)
        fresh = with_state(seen, estimate=replace(seen.state.estimate, rate_observed=False))
        assert rules.update_target(fresh).estimate.rate_observed is observed


def test_an_overload_ends_when_the_plan_covers_the_target() -> None:
    base = view(steady(7.9))
    over = with_state(base, target=replace(base.state.target, overload_since_ms=T0 - 5000))
    assert rules.update_target(over).target.overload_since_ms == 0
    short = with_state(
        over, infeasibility=replace(over.state.infeasibility, shortage_noticed_ms=T0 - 9)
    )
    assert rules.update_target(short).infeasibility.shortage_noticed_ms == 0
    floor = with_service(short, min_instances=2)
    assert rules.update_target(floor).infeasibility.shortage_noticed_ms == T0 - 9


def test_an_increase_states_a_derating() -> None:
    base = with_state(view(steady(30.0)), capacity=Capacity(derate=0.8, derated_ms=T0))
    found = rules.update_target(base).target
    assert found.why is not None and found.req_per_s > 8.0
    assert found.why.because[-1] == Reason(ReasonCode.DERATED, "chat", quantities=(0.8,))
    assert found.overload_since_ms and found.increase_confirmed_ms == T0


def test_a_canary_may_not_be_removed_while_it_is_compared() -> None:
    """The comparison ends after `within`, counted from the first request that the canary serves."""
    policy = RolloutPolicy(canary=CanaryPolicy(within_s=600.0))
    seen = view(steady(1.0), planned=5.0)

    def fails(serves_ms: int, declared: RolloutPolicy) -> bool:
        rollout = replace(seen.state.rollout, comparison=VersionComparison(serves_ms=serves_ms))
        model = replace(seen.service, rollout=declared)
        compared = replace(with_state(seen, rollout=rollout), service=model)
        found = failed_condition(compared, NO_LOSS)
        if found is not None:
            assert [one.code for one in found.because] == [ReasonCode.CANARY_COMPARED]
        return found is not None

    assert fails(seen.now_ms - 599_000, policy)
    assert not fails(seen.now_ms - 600_000, policy)
    assert not fails(0, policy)
    assert not fails(seen.now_ms - 1000, RolloutPolicy())
