"""The arrival rate by executors' counts is right. Wrong counts and clocks have bounded effects."""

from __future__ import annotations

import pytest

from autoscaler.estimate.engine_rate import (
    MOST_LOAD,
    PROBES_PER_S,
    REMEMBER_MS,
    GroupCount,
    Moment,
    engine_rates,
    is_recent,
    remember,
)

T0 = 1_700_000_000_000
CAPACITY = {"a": 10.0, "b": 10.0}
INSTANCES = {"a": 2, "b": 1}


def moment(at_s: int, **groups: GroupCount) -> Moment:
    return Moment(T0 + 1000 * at_s, 0, groups)


def count(at_s: int, accepted: int) -> GroupCount:
    return GroupCount(T0 + 1000 * at_s, accepted)


def rates(now: Moment, *moments: Moment) -> list[tuple[float, float]]:
    """(requests/s, span in seconds) of each rate."""
    found = engine_rates(moments, now.at_ms, now.groups, CAPACITY, INSTANCES)
    return [(round(one.req_per_s, 6), round(one.span_s, 6)) for one in found]


def test_the_rate_is_the_growth_of_all_counts_since_each_moment() -> None:
    first = moment(0, a=count(0, 1000), b=count(0, 50))
    second = moment(40, a=count(40, 1140), b=count(40, 150))
    now = moment(60, a=count(60, 1340), b=count(60, 250))
    assert rates(now, first, second) == [(15.0, 20.0), (9.0, 60.0)]


def test_few_seconds_give_no_rate() -> None:
    assert rates(moment(19, a=count(19, 200)), moment(0, a=count(0, 100))) == []


def test_a_new_group_counts_from_the_moment_that_knows_it() -> None:
    """Otherwise requests that moved to it from another group would count twice."""
    first, second = moment(0, a=count(0, 0)), moment(40, a=count(40, 400), b=count(40, 500))
    now = moment(60, a=count(60, 500), b=count(60, 600))
    assert rates(now, first, second) == [(10.0, 20.0), (round(500 / 60, 6), 60.0)]


def test_a_group_that_vanished_does_not_count() -> None:
    before = moment(0, a=count(0, 0), b=count(0, 9000))
    assert rates(moment(60, a=count(60, 300)), before) == [(5.0, 60.0)]


def test_a_group_whose_count_fell_is_left_out() -> None:
    """Its new count may be too low at first: a restarted executor reports 0 until it has asked its
    engines."""
    first, second = moment(0, a=count(0, 9000)), moment(40, a=count(40, 0))
    now = moment(60, a=count(60, 9200))
    assert rates(now, first, second) == []
    assert rates(moment(60, a=count(60, 20)), first) == []


def test_old_statuses_prove_nothing() -> None:
    before = moment(0, a=count(-5, 100))
    assert rates(moment(60, a=count(-5, 100)), before) == []


def test_a_node_that_reports_again_counts_over_its_whole_silence() -> None:
    """Its count grew by 3000 in 600 s, not in the last 60 s."""
    before = moment(600, a=count(60, 100))
    assert rates(moment(660, a=count(660, 3100)), before) == [(5.0, 60.0)]


@pytest.mark.parametrize("jump_s", [-3600, -60, -30, 0, 30, 3600])
def test_a_clock_that_jumps_never_raises_the_rate(jump_s: int) -> None:
    """The true rate is 5 req/s. An executor's clock jumped within the span."""
    found = rates(moment(60, a=count(60 + jump_s, 400)), moment(0, a=count(0, 100)))
    assert all(rate <= 5.0 for rate, _ in found)
    assert bool(found) is (jump_s > -60)


def test_a_constant_error_of_a_clock_changes_nothing() -> None:
    off_s = 10**6
    found = rates(moment(60, a=count(60 + off_s, 400)), moment(0, a=count(off_s, 100)))
    assert found == [(5.0, 60.0)]


def test_an_invented_count_adds_at_most_the_limit_of_its_own_group() -> None:
    before = moment(0, a=count(0, 100), b=count(0, 100))
    now = moment(60, a=count(60, 400), b=count(60, 10**12))
    ((rate, _),) = rates(now, before)
    assert rate == 5.0 + MOST_LOAD * CAPACITY["b"]


def test_groups_without_a_known_capacity_add_nothing() -> None:
    before, now = moment(0, c=count(0, 100)), moment(60, c=count(60, 400))
    assert rates(now, before) == []


def test_few_moments_are_remembered() -> None:
    """One in 20 s, and together about two minutes."""
    moments: tuple[Moment, ...] = ()
    for at_s in range(300):
        now = moment(at_s)
        moments = moments if is_recent(moments, now.at_ms) else remember(moments, now)
    ages_s = [299 - (one.at_ms - T0) // 1000 for one in moments]
    assert ages_s == [119, 99, 79, 59, 39, 19]
    assert is_recent(moments, moments[-1].at_ms + REMEMBER_MS - 1)


def test_probes_explain_requests_of_counted_instances_alone() -> None:
    """An executor that is away sends no probes either."""
    then = moment(0, a=count(0, 100), b=count(0, 100))
    now = moment(60, a=count(60, 130), b=count(0, 100))
    (rate,) = engine_rates([then], now.at_ms, now.groups, CAPACITY, INSTANCES)
    assert rate.instances == 2
    assert rate.arrived == pytest.approx(30 - 2 * (60 * PROBES_PER_S + 1))
    quiet = moment(60, a=count(60, 120), b=count(60, 110))
    (rate,) = engine_rates([then], quiet.at_ms, quiet.groups, CAPACITY, INSTANCES)
    assert rate.arrived == 0.0
