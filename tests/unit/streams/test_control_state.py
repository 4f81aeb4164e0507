"""The latest records of the control topics, for any order and for duplicates."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.clock import Clock
from streams.loop.control_state import (
    KEPT_DEAD,
    ControlState,
    DesiredRecords,
    RecordRefused,
    control_record_handler,
    on_local_clock,
)
from streams.loop.election import Election
from topics.broker_clock import BrokerClock
from topics.checks import MAX_MS, InvalidValue
from topics.records import (
    Assignment,
    Availability,
    DeadLetter,
    InstanceState,
    Leadership,
    ObservedInstance,
    PlanRecord,
    Price,
    Routes,
    Status,
)
from topics.time_base import TimeBase

ORDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8)


@given(ORDERS)
def test_the_highest_token_and_generation_wins_in_any_order(orders: list[tuple[int, int]]) -> None:
    """A late record of a former leader may be the last of its key. It does not hide newer state."""
    latest = ControlState(desired=DesiredRecords(claimed=3))
    for token, generation in orders:
        latest.take(Assignment("n", "p", generation, token, 0), 0)
        latest.take(Routes("m", generation, token, 0, 1.0, 1.0), 0)
    best = max(orders)
    assigned, routed = latest.desired.assignments["n"], latest.desired.routes["m"]
    assert (assigned.leader_token, assigned.generation) == best
    assert (routed.leader_token, routed.generation) == best


def test_records_with_an_unclaimed_token_count_once_it_is_claimed() -> None:
    """A record with a forged token of a million is kept aside. Records of a new leader may arrive
    before its claim.
    """
    latest = ControlState()
    latest.take(Leadership("one", "x", "claim", 0), 4)
    latest.take(Assignment("n", "p", 7, 5, 0), 0)
    latest.take(Assignment("n", "p", 9, 1_000_000, 0), 1)
    latest.take(Routes("m", 1, 8, 0, 1.0, 1.0), 0)
    assert latest.desired.assignments["n"].generation == 7
    assert latest.desired.routes == {}
    latest.take(Leadership("two", "y", "claim", 0), 7)
    assert latest.desired.routes["m"].leader_token == 8
    assert latest.desired.assignments["n"].generation == 7


def test_a_forged_token_hides_no_record_after_the_loss_of_all_claims() -> None:
    """The leadership topic was deleted while no controller ran. Records of the last leader count
    from the next claim on, whatever higher tokens were forged.
    """
    latest = ControlState()
    latest.take(Assignment("n", "p", 7, 5, 0), 0)
    for token in range(1_000_000, 1_000_020):
        latest.take(Assignment("n", "p", 9, token, 0), 1)
    latest.take(Leadership("one", "x", "claim", 0), 8)
    assert latest.desired.assignments["n"].generation == 7


@pytest.mark.parametrize("ahead_ms", [-90_000, 3_600_000])
def test_statuses_are_dated_by_the_broker(ahead_ms: int) -> None:
    """An executor clock that is 90 s behind loses no capacity. One that is an hour ahead does not
    hide a dead fleet.
    """
    made_ms = 1_700_000_000_000 + ahead_ms
    seen = ObservedInstance(
        "i", "m", "aggregated", "g:1", InstanceState.STARTING, (0,), "", made_ms - 5000, made_ms
    )
    heard = on_local_clock(Status("n", "p", "e", 1, made_ms, (seen,)), 1_700_000_000_100)
    assert heard.at_ms == 1_700_000_000_100
    assert heard.instances[0].since_ms == 1_700_000_000_100 - 5000
    assert heard.instances[0].launched_ms == 1_700_000_000_100


def test_the_last_record_of_each_key_counts() -> None:
    """Statuses, supply and prices have one writer per key, so the order in the topic decides."""
    latest = ControlState()
    for at_ms in (1, 2):
        latest.take(Status("n", "p", "e", 1, at_ms), at_ms)
        latest.take(Availability("p", at_ms, at_ms), at_ms)
        latest.take(Price("p", float(at_ms), at_ms), at_ms)
    latest.take(PlanRecord(7, 1, 0, "s", 0.0, 0.0), 1)
    latest.take(PlanRecord(6, 1, 0, "s", 0.0, 0.0), 2)
    latest.take(DeadLetter("status", 1, 5, "", "", "r"), 0)
    assert latest.statuses["n"].at_ms == 2
    assert latest.supply.nodes_obtainable["p"].nodes == 2
    assert latest.supply.usd_per_node_h["p"].usd_per_node_h == 2.0
    assert latest.numbers.plan == 7
    assert set(latest.dropped.dead) == {("status", 1, 5)}


def test_a_tombstone_deletes_its_key() -> None:
    """A node that was deleted from the topic is no longer known. Other nodes stay."""
    latest = ControlState()
    for node in ("a", "b"):
        latest.take(Status(node, "p", "e", 1, 1), 0)
    latest.drop("status", "a")
    latest.drop("status", "never there")
    latest.drop("decisions", "a")
    assert set(latest.statuses) == {"b"}


def test_stored_positions_of_dead_letters_are_bounded() -> None:
    """A writer of invalid records cannot exhaust the memory within weeks. The newest positions are
    kept.
    """
    latest = ControlState()
    for offset in range(3 * KEPT_DEAD):
        latest.take(DeadLetter("status", 0, offset, "why", "", "reader"), 0)
    assert len(latest.dropped.dead) <= 2 * KEPT_DEAD
    assert ("status", 0, 3 * KEPT_DEAD - 1) in latest.dropped.dead
    latest.dropped.bury(("status", 0, 3 * KEPT_DEAD - 1))
    assert latest.dropped.buried == 3 * KEPT_DEAD, "a count never falls, and no place counts twice"


def test_a_broker_clock_that_is_set_back_makes_no_node_silent() -> None:
    """The broker's clock was a minute ahead and is set back. The next record does not count as a
    minute old, because an earlier record had a later time.
    """
    mono = [0]
    broker = BrokerClock(lambda: mono[0], lambda: 0)
    clock = Clock(TimeBase(1.0, 1_000_000, 0), lambda: mono[0], broker.now_ms)
    broker.add_sample(600_000, 0)
    latest = ControlState()
    take = control_record_handler(
        latest, Election("b"), clock, lambda _record: None, lambda _alert: None
    )
    take("status", Status("n", "p", "x", 1, 0), 0, 600_000)
    mono[0] = 2_000_000_000
    take("status", Status("n", "p", "x", 2, 0), 1, 542_000)
    assert latest.statuses["n"].observed_generation == 2
    assert latest.statuses["n"].at_ms == 1_000_000


def test_the_age_of_supply_is_that_of_its_record_whatever_the_clock_of_the_feed() -> None:
    """Supply from a feed whose clock is an hour behind is not stale. A record that is read again is
    not new.
    """
    mono = [5_000_000_000]
    clock = Clock(TimeBase(1.0, 9_000_000, 0), lambda: mono[0], lambda: 700_000)
    latest = ControlState()
    take = control_record_handler(
        latest, Election("b"), clock, lambda _record: None, lambda _alert: None
    )
    behind_ms = clock.now_ms() - 3_600_000
    take("supply.prices", Price("r/p/spot", 2.0, behind_ms), 0, 698_000)
    take("supply.availability", Availability("r/p/spot", 3, behind_ms), 0, 699_000)
    assert latest.supply.usd_per_node_h["r/p/spot"].observed_ms == clock.now_ms() - 2_000
    assert latest.supply.nodes_obtainable["r/p/spot"].observed_ms == clock.now_ms() - 1_000
    before = latest.supply.usd_per_node_h["r/p/spot"]
    mono[0] += 10_000_000
    take("supply.prices", Price("r/p/spot", 2.0, behind_ms), 0, 698_000)
    assert latest.supply.usd_per_node_h["r/p/spot"] is before


def test_a_reclaim_time_is_converted_to_our_clock() -> None:
    """The executor's clock may be an hour ahead. The reclaim is two minutes after the record that
    announces it.
    """
    told = Status("n", "p", "x", 1, 3_610_000, reclaim_ms=3_730_000)
    assert on_local_clock(told, 10_000).reclaim_ms == 130_000
    assert on_local_clock(replace(told, reclaim_ms=0), 10_000).reclaim_ms == 0


@pytest.mark.parametrize(
    ("at_ms", "since_ms", "launched_ms", "reclaim_ms"),
    [
        (0, 0, 4_000_000_000_000, MAX_MS),
        (0, MAX_MS, MAX_MS, 1),
        (MAX_MS, 0, 1, MAX_MS),
        (MAX_MS, MAX_MS, 1, 1),
        (1_700_000_000_100, MAX_MS, MAX_MS, MAX_MS),
    ],
)
def test_contradicting_times_are_corrected_to_valid_ones(
    at_ms: int, since_ms: int, launched_ms: int, reclaim_ms: int
) -> None:
    """No instance is launched after the record that reports it."""
    seen = ObservedInstance(
        "i", "m", "aggregated", "g:1", InstanceState.READY, (0,), "", since_ms, launched_ms
    )
    told = Status("n", "p", "e", 1, at_ms, (seen,), reclaim_ms=reclaim_ms)
    heard = on_local_clock(told, 1_700_000_000_100)
    assert heard.at_ms == 1_700_000_000_100
    assert 0 <= heard.instances[0].since_ms <= heard.at_ms
    assert 0 <= heard.instances[0].launched_ms <= heard.at_ms
    assert 0 < heard.reclaim_ms <= MAX_MS


def test_a_record_with_an_impossible_time_is_refused() -> None:
    """The broker's append time is before the epoch, so no domain time exists for it."""
    clock = Clock(TimeBase(1000.0, 1_000_000, 0), lambda: 0, lambda: 9_000_000)
    latest, election = ControlState(), Election("b")
    take = control_record_handler(
        latest, election, clock, lambda _record: None, lambda _alert: None
    )
    for record in (Status("n", "p", "e", 1, 1, observed_token=7), Price("r/p/spot", 2.0, 1)):
        with pytest.raises(RecordRefused, match=r"at_ms|observed_ms"):
            take("any", record, 0, 0)
    assert latest == ControlState() and election.in_use == 0


def test_an_error_of_the_controller_makes_no_dead_letter() -> None:
    """It ends the process instead."""

    def overwrite(_record: object) -> None:
        raise InvalidValue("number", -1, "a fault of ours")

    clock = Clock(TimeBase(1.0, 1_000_000, 0), lambda: 0, lambda: 0)
    take = control_record_handler(
        ControlState(), Election("b"), clock, overwrite, lambda _alert: None
    )
    with pytest.raises(InvalidValue):
        take("assignments", Assignment("n", "p", 1, 1, 0), 0, 0)
