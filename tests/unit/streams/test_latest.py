"""What the control topics said last, whatever order and copies they come in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.controller.latest import KEPT_DEAD, Latest
from streams.controller.leadership import leads
from topics.records import (
    Assignment,
    Availability,
    DeadLetter,
    Leadership,
    PlanRecord,
    Price,
    Routes,
    Status,
)

ORDERS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5)), min_size=1, max_size=8)


@given(ORDERS)
def test_the_highest_token_and_generation_wins_in_any_order(orders: list[tuple[int, int]]) -> None:
    """A stale leader's late write may be the last of its key: it hides nothing."""
    latest = Latest()
    for token, generation in orders:
        latest.take(Assignment("n", "p", generation, token, 0), 0)
        latest.take(Routes("m", generation, token, 0, 1.0, 1.0), 0)
    best = max(orders)
    assigned, routed = latest.assignments["n"], latest.routes["m"]
    assert (assigned.leader_token, assigned.generation) == best
    assert (routed.leader_token, routed.generation) == best


@given(st.lists(st.integers(0, 20), max_size=10))
def test_the_highest_claim_is_the_one_furthest_in_the_topic(offsets: list[int]) -> None:
    """Tokens begin at 1, so that 0 is no leader; renewals are no claims."""
    latest = Latest()
    for offset in offsets:
        latest.take(Leadership(f"c{offset}", "x", "claim", 0), offset)
        latest.take(Leadership("late", "y", "renewal", 0), offset + 50)
    token = max((offset + 1 for offset in offsets), default=0)
    assert latest.highest_claim == (token, f"c{token - 1}" if token else "")
    assert leads(latest, token)
    assert leads(latest, token + 1)
    assert not leads(latest, token - 1)


def test_the_last_word_of_each_key_counts() -> None:
    """Statuses, supply and prices have one writer per key: order of the topic."""
    latest = Latest()
    for at_ms in (1, 2):
        latest.take(Status("n", "p", "e", 1, at_ms), at_ms)
        latest.take(Availability("p", at_ms, at_ms), at_ms)
        latest.take(Price("p", float(at_ms), at_ms), at_ms)
    latest.take(PlanRecord(7, 1, 0, "s", 0.0, 0.0), 1)
    latest.take(PlanRecord(6, 1, 0, "s", 0.0, 0.0), 2)
    latest.take(DeadLetter("status", 1, 5, "", "", "r"), 0)
    assert latest.statuses["n"].at_ms == 2
    assert latest.nodes_obtainable["p"].nodes == 2
    assert latest.usd_per_node_h["p"].usd_per_node_h == 2.0
    assert latest.plan_number == 7
    assert set(latest.dead) == {("status", 1, 5)}


def test_a_tombstone_takes_its_key_away() -> None:
    """A node that was deleted from the topic is no node any more; others stay."""
    latest = Latest()
    for node in ("a", "b"):
        latest.take(Status(node, "p", "e", 1, 1), 0)
    latest.drop("status", "a")
    latest.drop("status", "never there")
    latest.drop("decisions", "a")
    assert set(latest.statuses) == {"b"}


def test_places_of_dead_letters_are_bounded() -> None:
    """Somebody who writes rubbish for weeks does not take the memory; the newest are known."""
    latest = Latest()
    for offset in range(3 * KEPT_DEAD):
        latest.take(DeadLetter("status", 0, offset, "why", "", "reader"), 0)
    assert len(latest.dead) <= 2 * KEPT_DEAD
    assert ("status", 0, 3 * KEPT_DEAD - 1) in latest.dead
