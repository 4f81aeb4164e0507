"""The `Picture` of a run collects records for the view and the summary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Market
from streams.tools.up.recent_telemetry import Identities
from streams.tools.up.run_state import Picture
from streams.tools.up.screen_layout import cells, unmet_lines
from tests.unit.tools.up.status_records import NOW_MS, instance, row, telemetry
from topics.reason_codes import ReasonCode
from topics.records import (
    Assignment,
    Decision,
    DesiredInstance,
    Endpoint,
    InstanceState,
    PlannedCombo,
    PlanRecord,
    RouteGroup,
    Routes,
    Status,
)
from topics.supply import Price


def test_no_telemetry_is_no_data_and_not_zero(picture: Picture) -> None:
    assert row(picture).req_per_s is None
    picture.add(telemetry(arrivals=0, completions=0, attained=0, ttft_ms={}, tpot_ms={}))
    assert row(picture).req_per_s == 0.0
    assert cells(row(picture))[1] == ("0.0", "")


def test_a_second_copy_of_telemetry_changes_nothing(picture: Picture) -> None:
    for sequence in range(5):
        picture.add(telemetry(sequence=sequence))
    before = row(picture)
    picture.add(telemetry(sequence=3))
    assert row(picture) == before
    assert before.req_per_s == pytest.approx(4.0)
    assert before.attainment == pytest.approx(0.75)
    assert before.ttft_p95_ms == pytest.approx(200.0, rel=0.03)


def test_a_long_run_remembers_a_bounded_number_of_records(picture: Picture) -> None:
    picture._telemetry["mini"].identities = Identities(50)
    for sequence in range(200):
        picture.add(telemetry(sequence=sequence))
    before = row(picture)
    picture.add(telemetry(sequence=155))
    assert row(picture) == before
    identity = ("gw", "b", 0)
    assert picture._telemetry["mini"].identities.is_new(identity), "the oldest ones are forgotten"


def test_a_long_run_keeps_its_last_events_and_counts_all_decisions(picture: Picture) -> None:
    for number in range(3000):
        picture.add(infeasible(number))
    picture.add(infeasible(2999))
    assert picture.counts == {"infeasible": 3000}
    assert len(picture.decisions) == len(list(picture.story)) == 500
    assert [event.text for event in picture.story.since(2998)] == [
        "mini falls short: why 2998", "mini falls short: why 2999",
    ]  # fmt: skip


def test_old_routes_and_statuses_do_not_replace_newer_ones(picture: Picture) -> None:
    group = RouteGroup("g:1", 2.5, aggregated=(Endpoint("i1", "127.0.0.1:1"),))
    picture.add(Routes("mini", 5, 2, NOW_MS, 500, 30, (group,)))
    picture.add(Routes("mini", 9, 1, NOW_MS, 500, 30, ()))
    assert row(picture).capacity_req_per_s == 2.5
    ready = instance("i1", InstanceState.READY, (0,))
    picture.add(Status("n", "eu-west/l4/spot", "e", 1, NOW_MS, (ready,)))
    picture.add(Status("n", "eu-west/l4/spot", "e", 1, NOW_MS - 5, ()))
    assert picture.usd_per_h() == {Market.SPOT: pytest.approx(1.28), Market.ON_DEMAND: 0.0}


def test_a_nodes_price_is_shared_by_the_gpus_in_use_on_it(picture: Picture) -> None:
    picture.add(
        Status(
            "n", "eu-west/l4/on-demand", "e", 1, NOW_MS,
            (
                instance("i1", InstanceState.READY, (0,)),
                instance("i2", InstanceState.STARTING, (1, 2), model="code"),
                instance("i3", InstanceState.STOPPED, (3,)),
            ),
        )
    )  # fmt: skip
    assert row(picture).usd_per_h == pytest.approx(3.40 / 3)
    assert row(picture, "code").usd_per_h == pytest.approx(3.40 * 2 / 3)


def test_the_reaction_time_lasts_from_the_threshold_to_the_next_assignment(
    picture: Picture,
) -> None:
    def decision(number: int, kind: str, over_since_ms: int, at_ms: int) -> Decision:
        return Decision(number, 1, "mini", kind, at_ms, True, "why", over_since_ms=over_since_ms)

    picture.add(Assignment("n", "p", 1, 1, NOW_MS - 9000))
    picture.add(decision(1, "scale_out", NOW_MS - 3000, NOW_MS))
    picture.add(decision(1, "scale_out", NOW_MS - 3000, NOW_MS))
    picture.add(decision(2, "scale_in", 0, NOW_MS))
    picture.add(Assignment("n", "p", 2, 1, NOW_MS + 500))
    assert picture.reactions_s() == [3.5]


def desired(name: str, model: str = "mini", drain: bool = False) -> DesiredInstance:
    return DesiredInstance(name, model, "aggregated", f"g:{name}", (0,), drain=drain)


def assigned(node: str, *instances: DesiredInstance, generation: int = 1) -> Assignment:
    return Assignment(node, "p", generation, 1, NOW_MS, instances)


def plan(count: int, number: int = 1) -> PlanRecord:
    target = PlannedCombo("mini", "mini:a1@p", count, 1.0 * count, 1.0 * count)
    return PlanRecord(number, 1, NOW_MS, "urgent", 1.0 * count, -1.0, (target,))


def test_the_first_fleet_is_ready_when_every_planned_instance_is_ready_and_routed(
    picture: Picture,
) -> None:
    """One ready instance is not enough, nor are all instances assigned so far: the plan counts."""

    def up(*names: str) -> None:
        for name in names:
            seen = instance(name, InstanceState.READY, (0,))
            picture.add(Status(f"n-{name}", "eu-west/l4/spot", "e", 1, NOW_MS, (seen,)))
        groups = tuple(RouteGroup(f"g:{n}", 1.0, (Endpoint(n, "127.0.0.1:1"),)) for n in names)
        generation = len(names)
        picture.add(Routes("mini", generation, 1, NOW_MS, 500, 30, groups))

    def ready() -> tuple[int, int, bool]:
        found = picture.progress({"mini", "code"})
        assert "code" not in found.settled | found.started
        return found.ready, found.wanted, "mini" in found.settled

    assert ready() == (0, 0, False), "nothing was decided yet"
    picture.add(assigned("n-a", desired("a")))
    up("a")
    assert ready() == (1, 1, False), "no plan was seen yet"
    picture.add(plan(2))
    assert ready() == (1, 1, False), "the plan wants another one"
    picture.add(assigned("n-b", desired("b")))
    assert ready() == (1, 2, False)
    up("a", "b")
    assert ready() == (2, 2, True)
    picture.add(plan(1, number=2))
    picture.add(assigned("n-b", desired("b", drain=True), generation=2))
    picture.add(plan(2))
    picture.add(assigned("n-b", desired("b")))
    assert ready() == (1, 1, True), "what leaves is not waited for; old records change nothing"


def infeasible(number: int, model: str = "mini", capacity: float = 1.0) -> Decision:
    return Decision(
        number,
        1,
        model,
        "infeasible",
        NOW_MS,
        False,
        f"why {number}",
        demand_req_per_s=2.0,
        capacity_req_per_s=capacity,
    )


def test_unserved_demand_is_shown_until_a_plan_serves_it(picture: Picture) -> None:
    """The view shows one line per model with the latest reason. Additional capacity that is not
    enough changes nothing.
    """
    picture.add(infeasible(1))
    picture.add(infeasible(2))
    picture.add(infeasible(3, model="code"))
    same_tick = plan(1)
    picture.add(same_tick)
    assert picture.unmet(NOW_MS) == {"mini": "why 2", "code": "why 3"}
    assert unmet_lines(picture, NOW_MS)[0] == "! mini falls short: why 2"
    assert list(picture.story)[-1].text == "code falls short: why 3", "there is nothing to apply"
    later = replace(same_tick, number=2, at_ms=NOW_MS + 1000)
    picture.add(replace(later, shortfall_req_per_s={"mini": 0.5, "code": 0.01}))
    assert picture.unmet(NOW_MS) == {"mini": "why 2"}
    picture.add(replace(later, number=3))
    assert picture.unmet(NOW_MS) == {}


def test_a_shortage_that_the_controller_does_not_repeat_is_over(picture: Picture) -> None:
    """An impossible SLO is independent of the shortfall of a plan."""
    picture.add(infeasible(1, capacity=9.0))
    picture.add(replace(plan(1), at_ms=NOW_MS + 1000))
    assert picture.unmet(NOW_MS + 600_000) == {"mini": "why 1"}
    assert picture.unmet(NOW_MS + 700_000) == {}


@pytest.mark.parametrize("attained", [3, 4])
def test_a_predicted_miss_is_shown_unless_requests_meet_the_slo(
    picture: Picture, attained: int
) -> None:
    picture.add(replace(infeasible(1, capacity=9.0), codes=("outside_slo",)))
    assert picture.unmet(NOW_MS) == {"mini": "why 1"}, "nothing was measured yet"
    picture.add(telemetry(attained=attained))
    assert picture.unmet(NOW_MS) == ({"mini": "why 1"} if attained < 4 else {})


def test_the_lag_of_the_controller_is_shown_until_it_has_caught_up(picture: Picture) -> None:
    def hold_decision(number: int, code: str) -> Decision:
        return Decision(number, 1, "*", "hold", NOW_MS, True, f"about {code}", codes=(code,))

    assert picture.behind() == ""
    picture.add(hold_decision(1, ReasonCode.READER_BEHIND))
    picture.add(hold_decision(2, ReasonCode.PAUSED))
    assert picture.behind() == "about reader_behind"
    picture.add(hold_decision(3, ReasonCode.READER_CAUGHT_UP))
    assert picture.behind() == ""


def test_a_price_from_the_feed_changes_the_bill_from_its_time_on(picture: Picture) -> None:
    ready = replace(instance("i1", InstanceState.READY, (0,)), launched_ms=NOW_MS)
    pool = "eu-west/l4/spot"
    hour_ms = 3_600_000
    picture.add(Status("n1", pool, "ex", 1, NOW_MS + hour_ms, (ready,)))
    before = picture.usd()
    for _ in range(2):
        picture.add(Price(pool, 2.0, NOW_MS + hour_ms))
    picture.add(Status("n1", pool, "ex", 1, NOW_MS + 2 * hour_ms, (ready,)))
    assert picture.usd() == pytest.approx(before + 2.0)
    assert picture.usd_per_h()[Market.SPOT] == 2.0
    (mean,) = picture.mean_prices_usd_per_h(NOW_MS + 4 * hour_ms).values()
    assert mean == pytest.approx((before + 3 * 2.0) / 4)


def test_a_lost_node_costs_nothing_more_even_if_an_old_status_arrives_late(
    picture: Picture,
) -> None:
    ready = replace(instance("i1", InstanceState.READY, (0,)), launched_ms=NOW_MS)
    status = Status("n1", "eu-west/l4/spot", "ex", 1, NOW_MS, (ready,))
    picture.add(status)
    picture.lose("n1", NOW_MS + 5000)
    picture.add(replace(status, at_ms=NOW_MS + 4000))
    assert picture.statuses == {}
    picture.add(replace(status, at_ms=NOW_MS + 60_000))
    assert set(picture.statuses) == {"n1"}, "the node is back"
