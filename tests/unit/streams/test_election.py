"""Leader election of several controllers over one log, with clocks that stop with their process."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streams.loop.election import (
    ABOVE_S,
    LEASE_S,
    MOST_FOLLOWED,
    TAKEOVER_S,
    Election,
)
from tests.unit.streams.election_world import World
from topics.leadership import Leadership, token_of


def test_a_broker_clock_set_forward_does_not_expire_a_working_leader() -> None:
    world = World()
    world.start("a"), world.start("b")
    world.run(10)
    before = sum(record.kind == "claim" for record in world.log)
    world.age_s = 60.0  # Each record looks a minute old.
    world.run(10)
    assert sum(record.kind == "claim" for record in world.log) == before
    assert world.leader()


def test_the_first_controller_leads_at_once_and_the_second_waits() -> None:
    """The start of another controller does not disturb a working leader."""
    world = World()
    world.start("one")
    world.run(1.0)
    assert world.leader() == "one"
    world.start("two")
    world.run(60.0)
    assert world.leader() == "one"
    assert sum(record.kind == "claim" for record in world.log) == 1


def test_a_standby_takes_over_soon_after_the_leader_failed() -> None:
    """The takeover happens within the time-out plus a second, with a higher token."""
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.start("two")
    world.run(10.0)
    before = first.election.token
    del world.controllers["one"]
    world.run(TAKEOVER_S + 1.0)
    assert world.leader() == "two"
    assert world.controllers["two"].election.token > before


def test_a_leader_that_was_suspended_does_not_lead_when_it_resumes() -> None:
    """Its lease has expired on its own clock before it reads the claim of another leader."""
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.start("two")
    world.run(3.0)
    first.running = False
    world.run(30.0)
    assert world.leader() == "two"
    first.running = True
    assert not first.leads()
    world.run(30.0)
    assert world.leader() == "two"


def test_a_standby_that_was_suspended_does_not_count_that_time_as_silence() -> None:
    """It first reads the renewals of that time, then measures the silence of the leader."""
    world = World()
    world.start("one")
    second = world.start("two")
    world.run(5.0)
    second.running = False
    world.run(60.0)
    second.running = True
    world.run(10.0)
    assert world.leader() == "one"


def test_a_standby_without_a_broker_makes_no_claim() -> None:
    """It cannot distinguish a silent leader from an unreachable broker."""
    world = World()
    world.start("one")
    second = world.start("two")
    world.run(5.0)
    second.connected = False
    world.run(60.0)
    assert not second.election.may_claim(world.now_s)
    second.connected = True
    world.run(10.0)
    assert world.leader() == "one"


def test_a_leader_that_is_cut_off_stops_before_another_one_begins() -> None:
    """World.run asserts that no two controllers lead. The lease is shorter than the silence for
    which a standby waits.
    """
    world = World()
    first = world.start("one")
    world.start("two")
    world.run(5.0)
    leader = world.controllers[world.leader()]
    leader.connected = False
    world.run(LEASE_S + 0.2)
    assert world.leader() == ""
    world.run(TAKEOVER_S)
    assert world.leader() not in ("", leader.name)
    assert first.election.highest >= 1


def test_a_leader_that_resigns_is_replaced_at_once() -> None:
    """A resignation leaves the leadership vacant."""
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.start("two")
    world.run(5.0)
    token = first.election.token
    del world.controllers["one"]
    world.log.append(Leadership("one", first.election.boot, "resignation", 1, 0, token))
    world.taken_s.append(world.now_s)
    world.run(0.5)
    assert world.leader() == "two"


@pytest.mark.parametrize("slow_s", [0.3, 1.5, 2.5])
def test_of_two_crossing_claims_the_first_one_leads_first(slow_s: float) -> None:
    """Two standbys claim at the same time. The first leads until it reads the later claim."""
    world = World()
    first = world.start("one")
    world.run(3.0)
    for name in ("two", "three"):
        world.start(name)
    world.run(5.0)
    first.connected = False
    world.controllers["three"].slow_s = slow_s
    world.run(LEASE_S + TAKEOVER_S + 4.0)  # World.run asserts at most one leader.
    assert world.leader() in ("two", "three")


def test_a_recreated_topic_gives_no_second_leader_while_a_lease_is_valid() -> None:
    """A leader that is cut off at that moment keeps its lease for some seconds."""
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.start("two")
    world.run(10.0)
    first.connected = False
    world.delete()
    world.run(12.0)  # At most one controller leads at any time.
    assert world.leader() == "two"


def test_tokens_keep_rising_after_the_topic_is_recreated() -> None:
    """The leader finds its renewals at lower offsets. It makes a new claim above every token in
    use.
    """
    world = World()
    first = world.start("one")
    world.run(30.0)
    before = first.election.token
    world.delete()
    world.run(15.0)
    assert world.leader() == "one"
    assert first.election.token > before
    (claim,) = [(r, o) for o, r in enumerate(world.log) if r.kind == "claim"]
    assert token_of(*claim) == first.election.token


def test_a_first_claim_is_above_the_token_that_executors_follow() -> None:
    """The topic was deleted while no controller ran. An implausibly high token is ignored."""
    election = Election("boot")
    assert election.next_base() == 0
    election.followed(57)
    election.followed(10**12)
    assert election.next_base() == 57


def test_a_lying_executor_leaves_room_for_higher_tokens() -> None:
    """A lying executor reports the highest plausible token, and the leader claims above it. After
    the topic is recreated, the next claim is above all tokens that executors follow.
    """
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.followed = MOST_FOLLOWED
    world.run(ABOVE_S + 20.0)
    before = first.election.token
    assert before == world.followed > MOST_FOLLOWED
    world.delete()
    world.run(15.0)
    assert world.leader() == "one"
    assert first.election.token > before


def test_a_leader_that_missed_a_higher_claim_claims_above_it() -> None:
    """The leader is cut off while its successor makes a claim. Then the topic is deleted and the
    successor is killed. Only executors know that claim, and they refuse every lower token.
    """
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.start("two")
    world.run(5.0)
    first.connected = False
    world.run(15.0)
    assert world.leader() == "two"
    del world.controllers["two"]
    world.delete()
    first.connected = True
    world.run(15.0)
    assert world.leader() == "one"
    assert first.election.token == world.followed


def test_a_leader_refused_by_executors_claims_again_within_a_limit() -> None:
    """Only a leader learns which token executors follow. A lying executor causes a limited number
    of new terms.
    """
    world = World()
    first = world.start("one")
    world.run(3.0)
    world.followed = 500
    world.run(ABOVE_S + 2.0)
    assert world.leader() == "one"
    assert first.election.token == world.followed > 500
    before = sum(record.kind == "claim" for record in world.log)
    for _ in range(60):
        world.followed += 1000
        world.run(1.0)
    assert world.leader() == "one"
    assert sum(record.kind == "claim" for record in world.log) <= before + 60 / ABOVE_S


def test_a_controller_waits_while_executors_follow_a_leader_with_a_lost_claim() -> None:
    """A cut-off leader may still have its lease when another controller starts on the new topic."""
    world = World()
    first = world.start("one")
    world.run(5.0)
    first.connected = False
    world.delete()
    world.start("two")
    world.run(12.0)  # At most one controller leads at any time.
    assert world.leader() == "two"
    assert world.controllers["two"].election.token > first.election.highest


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stop", "resume", "cut", "heal", "kill", "start", "delete", "slow"]),
            st.integers(0, 3),
            st.floats(0.1, 12.0),
        ),
        max_size=12,
    )
)
def test_at_most_one_controller_leads_and_one_leads_in_the_end(
    faults: list[tuple[str, int, float]],
) -> None:
    """Controllers stop, are cut off, killed and started in any order, and the topic is deleted at
    any time. After the last fault a controller leads that executors follow.
    """
    world = World()
    for number in range(3):
        world.start(f"c{number}")
    for fault, number, for_s in faults:
        controller = world.controllers.get(f"c{number}")
        if fault == "delete":
            world.delete()
        elif fault == "start" or controller is None:
            world.start(f"c{number}")
        elif fault == "slow":
            controller.slow_s = for_s / 4
        elif fault in ("stop", "resume"):
            controller.running = fault == "resume"
        elif fault in ("cut", "heal"):
            controller.connected = fault == "heal"
        else:
            del world.controllers[f"c{number}"]
        world.run(for_s)
    for number in range(3):
        world.start(f"c{number}")
    for controller in world.controllers.values():
        controller.slow_s = 0.0
    world.run(3 * TAKEOVER_S)
    assert world.leader()
    assert world.controllers[world.leader()].election.token == world.followed
