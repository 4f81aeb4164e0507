"""Definitions of the measures, on timelines that were written by hand."""

from __future__ import annotations

import pytest

from autoscaler.domain.workload import Slo
from autoscaler.simulation.arrivals import p99_10s_req_per_s
from autoscaler.simulation.run_measures import ComboCapacity, OrderedCapacity, attains
from autoscaler.simulation.timeline import OrderedFleet, RequestRow, Timeline, active_group_counts
from loadtests.decision_figures import (
    Truth,
    model_figures,
    smoothed_rates,
    step_figures,
)
from tests.unit.simulation.simulation_builders import LENGTHS, ONE, cluster, evenly
from topics.decisions import Decision
from topics.fleet import Assignment, DesiredInstance

SLO = Slo(1000.0, 50.0)


def row(
    first_s: float | None, end_s: float, outcome: str = "served", arrival_s: float = 0.0
) -> RequestRow:
    return RequestRow(1, "mini", arrival_s, first_s, end_s, 10, 101, outcome)


@pytest.mark.parametrize(
    ("request_row", "hit"),
    [
        (row(1.0, 6.0), True),  # 1000 ms and 100 gaps of 50 ms are exactly at both limits.
        (row(1.001, 6.0), False),
        (row(1.0, 6.2), False),
        (row(0.1, 1.0, "failed"), False),
        (row(None, 1.0, "refused"), False),
    ],
)
def test_a_request_within_both_limits_meets_the_slo(request_row: RequestRow, hit: bool) -> None:
    assert attains(request_row, SLO) is hit


def test_delays_last_from_the_step_to_the_order() -> None:
    found = OrderedCapacity((0.0, 98.0, 105.0, 130.0), (2.0, 1.0, 3.0, 9.0))
    figures = step_figures(found, 100.0, 8.0)
    assert (figures.first_scale_out_s, figures.sufficient_s) == (5.0, 30.0)
    assert step_figures(found, 110.0, 3.0).sufficient_s == 0.0
    never = step_figures(found, 100.0, 20.0)
    assert (never.first_scale_out_s, never.sufficient_s) == (5.0, None)


def test_p99_of_rates_is_taken_over_whole_spans_of_ten_seconds() -> None:
    busy = [5.0 + 0.1 * i for i in range(30)]  # 30 in the first span and none in the other 99
    assert p99_10s_req_per_s(busy, (0.0, 1000.0)) == 3.0
    assert p99_10s_req_per_s(busy, (0.0, 2000.0)) == 0.0


def test_the_rate_of_a_trace_is_its_count_around_a_moment() -> None:
    rate = smoothed_rates(evenly(1000, 0.5), 100.0)["mini"]
    assert rate(300.0) == pytest.approx(2.0, rel=0.02)
    assert rate(20.0) == 0.0


def decision(
    at_s: float, *change: tuple[str, int], applied: bool = True, usd_per_h: float = 0.0
) -> Decision:
    return Decision(
        1,
        1,
        "mini",
        "scale_out",
        int(1000 * at_s),
        applied,
        "",
        cost_delta_usd_per_h=usd_per_h,
        change=change,
    )


def figures_of(timeline: Timeline, rate: float):  # type: ignore[no-untyped-def]
    capacity = ComboCapacity(cluster(), {"mini": LENGTHS})
    truth = Truth({"mini": lambda _: rate}, {"mini": LENGTHS})
    return model_figures("mini", timeline, cluster(), capacity, truth, (0.0, 100.0))


def test_over_provisioning_is_ordered_capacity_relative_to_demand() -> None:
    one = ComboCapacity(cluster(), {"mini": LENGTHS}).of(ONE)[1]
    timeline = Timeline(ordered=[OrderedFleet(0.0, {ONE: 1}), OrderedFleet(50.0, {ONE: 3})])
    figures = figures_of(timeline, 0.8 * one)  # one instance at 80% is exactly enough
    assert figures.over_provisioning == pytest.approx(0.5 * (0.0 + 2.0))


def test_reversals_and_false_scale_outs_come_from_applied_decisions() -> None:
    spot = ONE.replace("on-demand", "spot")
    timeline = Timeline(
        ordered=[OrderedFleet(0.0, {ONE: 4})],
        decisions=[
            decision(10.0, (ONE, 1)),  # Four were enough, so this is a false scale-out.
            decision(20.0, (ONE, 1), applied=False),
            decision(30.0, (ONE, -1), (spot, 1)),  # an exchange
            decision(40.0, (ONE, -1)),  # a reversal
            decision(50.0, (ONE, -1)),
            decision(60.0, (ONE, 1)),  # a reversal, and a false scale-out
        ],
    )
    figures = figures_of(timeline, 1.0)
    assert figures.reversed.at_s == (40.0, 60.0)
    assert figures.reversed.most_per_h == 2
    assert figures.false_scale_outs == 2


def test_an_exchange_for_more_capacity_at_less_cost_is_no_scale_out() -> None:
    spot = ONE.replace("on-demand", "spot")
    more = (spot, 3), (ONE, -1)
    for usd_per_h, false_outs in ((-0.5, 0), (0.4, 1)):
        timeline = Timeline(
            ordered=[OrderedFleet(0.0, {ONE: 4})],
            decisions=[decision(10.0, *more, usd_per_h=usd_per_h)],
        )
        assert figures_of(timeline, 1.0).false_scale_outs == false_outs


def test_a_scale_out_that_was_needed_is_not_false() -> None:
    timeline = Timeline(ordered=[OrderedFleet(0.0, {ONE: 1})], decisions=[decision(10.0, (ONE, 1))])
    assert figures_of(timeline, 50.0).false_scale_outs == 0


def test_draining_groups_are_not_ordered() -> None:
    stays = DesiredInstance("a", "mini", "aggregated", f"{ONE}:1", (0,))
    goes = DesiredInstance("b", "mini", "aggregated", f"{ONE}:2", (1,), drain=True)
    assert active_group_counts([Assignment("n", "p", 1, 1, 1, (stays, goes))]) == {ONE: 1}
