"""The leader restores topics that were deleted and created again, and deleted keys in use."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoscaler.estimate.forecast.history import MINUTES
from autoscaler.state.ledger import ArrivalsHour, write_part
from tests.unit.names.names_world import T0, NamesWorld
from topics.controls import Control
from topics.ledger import MOST_SLOTS
from topics.records import Assignment


def pause(scope: str) -> Control:
    return Control(scope, "pause", True, "ann", "a test", 1)


HOUR_MS = 3_600_000
PAST = ArrivalsHour(T0 // HOUR_MS - 5, (1,) * MINUTES)


@pytest.fixture
def world(tmp_path: Path) -> NamesWorld:
    """A new leader that has read or written a record on each topic that it restores. No tick
    records the arrivals of five hours ago (PAST) again."""
    made = NamesWorld(tmp_path)
    made.declare("a", "b")
    made.run(2)
    made.withdraw("a")
    made.rest()
    made.put(Assignment("eu.l4.0", "eu.l4", 1, made.token, made.now_ms))
    made.put(pause("b"))
    made.put(write_part("mini", PAST, made.token, made.now_ms))
    made.lead()
    made.run(2)
    return made


def keys(world: NamesWorld, topic: str) -> set[bytes | None]:
    """The keys with a value, without present hours, which come with time."""
    found = world.log.keys()[topic]
    hours = {key for key in found if key and key.startswith(b"arrivals/")}
    return found - (hours - {f"arrivals/mini/{PAST.hour % MOST_SLOTS}".encode()})


@pytest.mark.parametrize(
    "topic", ["assignments", "routes", "ledger", "names", "services", "controls"]
)
def test_the_leader_writes_a_topic_again(world: NamesWorld, topic: str) -> None:
    """A lost pause or memory would end with the next change of leader."""
    before = keys(world, topic)
    assert before
    world.log.topics[topic].clear()
    world.restore.note_created(topic)
    world.run(2)
    assert keys(world, topic) == before
    again = len(world.log.topics[topic])
    world.run(2)
    assert topic == "ledger" or len(world.log.topics[topic]) == again, "written once"


@pytest.mark.parametrize("topic", ["assignments", "routes", "ledger", "names"])
def test_a_deleted_key_in_use_is_written_again(world: NamesWorld, topic: str) -> None:
    before = keys(world, topic)
    for key in (*before, b"junk", b"\xff"):
        world.log.write(topic, key, None, world.now_ms)
    world.run(3)
    assert keys(world, topic) == before


def test_a_deleted_key_without_an_owner_causes_no_write(world: NamesWorld) -> None:
    for key in (b"junk", b"model/other", b"arrivals/mini/72", b"\xff"):
        world.log.write("ledger", key, None, world.now_ms)
    world.read()
    assert world.loop.state.term.begun


def test_a_tombstone_of_an_operator_ends_a_pause(world: NamesWorld) -> None:
    world.log.write("controls", b"pause/b", None, world.now_ms)
    world.run(2)
    assert b"pause/b" not in world.log.keys()["controls"] and not world.latest.controls
