"""A lower target needs excess for the whole scale-in time. Derating needs significant misses at a
planned load.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.estimate.forecast.forecast_state import ForecastState
from autoscaler.estimate.forecast.history import History
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import NoData
from autoscaler.sizing import capacity_derating
from autoscaler.sizing.rules import update_target
from autoscaler.sizing.scale_in.conditions import _no_full_window as no_full_window
from autoscaler.sizing.scale_in.conditions import failed_condition
from autoscaler.sizing.scale_in.lower_target import lower_target
from autoscaler.sizing.slo_misses import remaining_budget
from autoscaler.state.model_view import ModelView
from tests.unit.sizing.target_views import T0, stats, view
from topics.reason_codes import ReasonCode


def steady(*rates: float) -> ModelDemand:
    """Demand with each of `rates` for two minutes. The last rate fills the local window."""
    blocks = tuple((10, round(10 * rate)) for rate in rates for _ in range(12))
    recent = tuple((n, round(rates[-1] * n)) for n in (1, 2, 5, 10, 30, 60))
    return ModelDemand(recent, stats(round(rates[-1] * 120), 120), blocks=blocks, reported_ms=T0)


def test_ten_minutes_of_less_demand_lower_the_target_to_their_highest_window() -> None:
    found = lower_target(view(steady(8.0, 3.0, 3.0, 3.0, 3.0, 3.0)))
    assert found is not None and 3.0 < found.req_per_s < 3.3


@pytest.mark.parametrize("at", range(5))
def test_two_minutes_of_more_demand_keep_the_target(at: int) -> None:
    """They may lie anywhere in the ten minutes, so a mean over all ten is not sufficient."""
    rates = [3.0] * 5
    rates[at] = 8.0
    found = lower_target(view(steady(8.0, *rates), planned=8.0))
    assert found is None or found.req_per_s > 7.5


def test_a_partial_first_block_does_not_invalidate_the_long_window() -> None:
    """In nine of ten seconds the windows contain only 179 of the 180 blocks in full."""
    low = steady(*[3.0] * 15)
    again = view(replace(low, blocks=low.blocks[1:]))
    slow = replace(again, service=replace(again.service, scale_in_after_s=1800.0))
    lower = lower_target(slow)
    assert lower is not None and lower.req_per_s < 3.3


def test_added_capacity_counts_as_needed_for_the_excess_period() -> None:
    """A target above the planned rate may fall to the planned rate, but no lower."""
    seen = view(steady(3.0, 3.0, 3.0, 3.0, 3.0, 3.0), planned=5.0)
    found = lower_target(
        replace(
            seen,
            state=replace(
                seen.state, hysteresis=replace(seen.state.hysteresis, last_out_ms=T0 - 599_000)
            ),
        )
    )
    assert found is None or found.req_per_s >= 5.0
    later = lower_target(
        replace(
            seen,
            state=replace(
                seen.state, hysteresis=replace(seen.state.hysteresis, last_out_ms=T0 - 601_000)
            ),
        )
    )
    assert later is not None and later.req_per_s < 3.3


def test_a_controller_that_just_started_lowers_no_target() -> None:
    seen = steady(3.0, 3.0, 3.0, 3.0, 3.0)
    assert lower_target(view(seen)) is not None
    assert lower_target(view(seen, started_ms=T0 - 599_000)) is None


def taken_over(seen: ModelView) -> ModelView:
    """`seen` in a controller that took over its instances without memory."""
    target = replace(seen.state.target, restart_hold=True, req_per_s=0.0)
    return replace(seen, state=replace(seen.state, target=target))


def test_instances_taken_over_without_memory_are_held_and_no_more() -> None:
    """Until a local window is measured, the target follows the evaluation of the running instances,
    even below it. Until an excess could be proven, none is removed.
    """
    seen = taken_over(view(steady(30.0, 30.0), planned=8.0, started_ms=T0 - 100_000))
    assert update_target(seen).target.req_per_s == pytest.approx(8.0)
    state = update_target(seen)
    longer = replace(seen, state=state, raw_req_per_s=seen.raw_req_per_s / 2)
    assert update_target(longer).target.req_per_s == pytest.approx(4.0)
    later = replace(seen, started_ms=T0 - 121_000)
    assert update_target(later).target.req_per_s > 8.0
    why = failed_condition(later, (no_full_window,))
    assert why is not None and why.because[0].code is ReasonCode.NO_FULL_WINDOW
    assert failed_condition(replace(seen, started_ms=T0 - 601_000), (no_full_window,)) is None
    assert (
        failed_condition(replace(later, state=view(steady(3.0)).state), (no_full_window,)) is None
    )


def misses(share: float, load: float = 7.0, planned: float = 8.0) -> ModelDemand:
    arrivals = round(load * 120)
    return ModelDemand((), stats(arrivals, 120, attained=round(arrivals * (1 - share))))


def test_significant_misses_derate_capacity_and_state_it() -> None:
    """At a percentile of 0.95, 42 of 840 requests may miss. 50 misses are chance, 210 are not."""
    assert capacity_derating.update_derating(view(misses(0.06))).capacity.derate == 1.0
    state = capacity_derating.update_derating(view(misses(0.25)))
    assert state.capacity.derate < 1.0
    why = state.target.why
    assert why is not None and why.code is ReasonCode.OVERESTIMATED
    assert why.quantities == pytest.approx((0.75, 840, 7.0, 8.0))


@pytest.mark.parametrize("load", [5.0, 6.0, 7.5])
def test_capacity_is_derated_below_the_load_that_missed(load: float) -> None:
    """The load is 5 of 8 req/s. A step down to 6.8 would not trigger a scale-out, however many
    requests miss.
    """
    seen = view(misses(0.5, load))
    found = replace(seen, state=capacity_derating.update_derating(seen))
    assert found.planned_req_per_s == pytest.approx(0.85 * load)


def test_idle_seconds_before_traffic_do_not_lower_the_load_that_missed() -> None:
    """6 req/s for the last 90 of 120 s give a window mean of 4.5 req/s. Capacity is set below 6,
    not below 4.5.
    """
    local = stats(540, 120, attained=270)
    recent = tuple((s, 6 * min(s, 90)) for s in (1, 2, 5, 10, 20, 40, 60, 90, 110))
    seen = view(ModelDemand(recent, local))
    found = replace(seen, state=capacity_derating.update_derating(seen))
    assert found.planned_req_per_s == pytest.approx(0.85 * 6.0, rel=0.02)


def test_misses_of_one_batch_are_not_independent() -> None:
    """126 of 840 requests miss. One instance serves 30 at a time, so about 20 are late together,
    and six such groups are chance. If twenty instances share the requests, each miss is stronger
    evidence.
    """
    seen = view(misses(0.15))
    (one,) = seen.serving.ready
    shared = tuple(one.scaled_to(one.req_per_s / 20) for _ in range(20))
    assert capacity_derating.update_derating(seen).capacity.derate == 1.0
    assert (
        capacity_derating.update_derating(
            replace(seen, serving=replace(seen.serving, ready=shared))
        ).capacity.derate
        < 1.0
    )


@pytest.mark.parametrize("load", [3.0, 9.0])
def test_misses_below_half_of_the_planned_load_or_above_it_are_ignored(load: float) -> None:
    assert capacity_derating.update_derating(view(misses(0.5, load))).capacity.derate == 1.0


def test_misses_do_not_derate_twice_within_four_minutes_nor_below_one_half() -> None:
    first = capacity_derating.update_derating(view(misses(0.5)))
    seen = view(misses(0.5))
    assert capacity_derating.update_derating(replace(seen, state=first)) == first
    later = replace(
        seen,
        now_ms=T0 + 241_000,
        state=replace(first, capacity=replace(first.capacity, derate=0.5)),
    )
    # At a derating of one half, 20 req/s of raw capacity is planned for 8 req/s.
    loaded = replace(later, raw_req_per_s=20.0)
    assert capacity_derating.update_derating(loaded).capacity.derate == capacity_derating.LEAST


def test_misses_of_instances_that_cannot_meet_the_slo_are_ignored() -> None:
    """No additional capacity would help."""
    seen = view(misses(0.5))
    hopeless = tuple(replace(combo, meets_slo=False) for combo in seen.serving.ready)
    assert (
        capacity_derating.update_derating(
            replace(seen, serving=replace(seen.serving, ready=hopeless))
        ).capacity.derate
        == 1.0
    )


@pytest.mark.parametrize(
    ("load", "missing", "derate"),
    [
        (7.0, 0.0, 0.875),  # 7 of 8 predicted are served, more than the derated capacity.
        (4.0, 0.0, 0.8 * 1.03),  # A smaller load is served: one step.
        (4.0, 0.04, 0.8),  # 5% may miss, and 4% of 480 may be chance.
        (3.0, 0.0, 0.8),  # Below half of the planned rate.
        (0.0, 0.0, 0.8),  # No request arrives.
    ],
)
def test_capacity_recovers_as_far_as_served_load_proves(
    load: float, missing: float, derate: float
) -> None:
    seen = view(misses(missing, load))
    state = replace(
        seen.state, capacity=replace(seen.state.capacity, derate=0.8, derated_ms=T0 - 600_000)
    )
    assert capacity_derating.update_derating(
        replace(seen, state=state)
    ).capacity.derate == pytest.approx(derate)
    sooner = replace(state, capacity=replace(state.capacity, derated_ms=T0 - 599_000))
    assert capacity_derating.update_derating(replace(seen, state=sooner)).capacity.derate == 0.8


def test_unfinished_load_proves_no_capacity() -> None:
    """Arrivals have just doubled. All finished requests met their limits."""
    doubled = replace(stats(480, 120), arrivals=960, req_per_s=8.0)
    seen = view(ModelDemand((), doubled))
    state = replace(
        seen.state, capacity=replace(seen.state.capacity, derate=0.5, derated_ms=T0 - 600_000)
    )
    assert (
        capacity_derating.update_derating(replace(seen, state=state)).capacity.derate == 0.5 * 1.03
    )


def test_a_long_window_is_enough_evidence_for_a_step_at_a_low_rate() -> None:
    """Ten requests in two minutes prove nothing. 150 requests in half an hour prove enough for one
    step.
    """
    few, many = stats(10, 120), stats(150, 1800)
    state = replace(
        view(ModelDemand()).state,
        capacity=replace(view(ModelDemand()).state.capacity, derate=0.8, derated_ms=T0 - 600_000),
    )
    for long, derate in ((few, 0.8), (many, 0.8 * 1.03)):
        seen = view(ModelDemand(local=few, long=long), planned=0.12, state=state)
        assert capacity_derating.update_derating(seen).capacity.derate == pytest.approx(derate)


def test_capacity_stays_while_returns_of_demand_pay_for_it() -> None:
    """Demand fell and returned every twelve minutes until eleven minutes ago. Misses count only if
    there are more than the percentile allows."""
    missed = replace(stats(20_000, 1800), attained=18_000)
    seen = view(replace(steady(*[3.0] * 15), long=missed), planned=8.0)
    minutes = [480] * 3 + ([180] * 11 + [480]) * 4 + [180] * 9
    within = view(replace(seen.demand, long=replace(missed, attained=20_000)), planned=8.0)
    assert rate_kept(within, minutes) < 3.3
    assert rate_kept(seen, minutes) == pytest.approx(0.8 * 8.0)
    assert rate_kept(seen, [480] * 3 + [180] * 57) < 3.3
    assert rate_kept(seen, [480] * 3 + ([180] * 11 + [480]) * 4 + [180] * 12) < 3.3


def rate_kept(seen: ModelView, minutes: list[int]) -> float:
    """The target after a scale-in whose model has the history `minutes` of arrivals."""
    hours = (tuple(minutes[:60]), tuple((*minutes[60:], *[-1] * 60)[:60]))
    outlook = ForecastState(History(0, hours, len(minutes)))
    estimate = replace(seen.state.estimate, forecast=outlook)
    slow = tuple(replace(combo, start_s=60.0) for combo in seen.serving.ready)
    serving = replace(seen.serving, ready=slow)
    found = lower_target(
        replace(seen, state=replace(seen.state, estimate=estimate), serving=serving)
    )
    return seen.state.target.req_per_s if found is None else found.req_per_s


def test_the_error_budget_is_the_share_that_the_percentile_leaves() -> None:
    assert remaining_budget(stats(100, 120, attained=97), 0.95) == pytest.approx(2.0)
    assert remaining_budget(stats(100, 120, attained=94), 0.95) == pytest.approx(-1.0)
    assert remaining_budget(NoData(None), 0.95) == 0.0
