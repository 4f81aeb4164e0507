"""A leader that continues from the ledger decides what its predecessor would have decided."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.unit.decide.decide_world as worlds
from autoscaler.decide import ControllerState, Effect, Observation, decide, restore
from autoscaler.domain.cluster import Cluster
from autoscaler.state.effects import PublishLedger
from autoscaler.state.ledger import read_part
from autoscaler.tick.record_ledger import record_ledger
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.ledger import LedgerEntry

FOLLOWED_TICKS = 25
NEVER_SAME = ("term", "published", "pending")
"""Fields of the state that a leader does not take from the ledger: its own term, records that are
topics of their own, and requests to the planner, which it makes again."""


def read_again(entry: LedgerEntry) -> LedgerEntry:
    found = decode("ledger", encode(entry))
    assert isinstance(found, LedgerEntry)
    return found


def successor(w: World, entries: list[LedgerEntry]) -> ControllerState:
    """The state of the next leader. It keeps the token and announces nothing, so that its effects
    can be compared with those of its predecessor."""
    state = restore(
        w.cluster, dict(w.applied), dict(w.routes), dict(w.statuses), list(w.decisions), w.now_ms,
        leader_token=w.state.term.leader_token,
        plan_number=max((plan.number for plan in w.plans), default=0),
        next_serial=max((plan.next_serial for plan in w.plans), default=1),
        ledger=[read_again(entry) for entry in entries],
    )  # fmt: skip
    return replace(state, term=replace(state.term, announce=None, begun=True))


class Twins:
    """Decides for a world, and lets a successor decide on the same observations."""

    def __init__(self) -> None:
        self.twin: ControllerState | None = None
        self.effects: list[tuple[tuple[Effect, ...], tuple[Effect, ...]]] = []

    def decide(
        self, state: ControllerState, seen: Observation, cluster: Cluster, now_ms: int
    ) -> tuple[ControllerState, tuple[Effect, ...]]:
        after, effects = decide(state, seen, cluster, now_ms)
        if self.twin is not None:
            self.twin, others = decide(self.twin, seen, cluster, now_ms)
            self.effects.append((without_ledger(effects), without_ledger(others)))
        return after, effects


def without_ledger(effects: tuple[Effect, ...]) -> tuple[Effect, ...]:
    return tuple(effect for effect in effects if not isinstance(effect, PublishLedger))


def swinging(seed: int) -> Callable[[str, int], float]:
    """Rates that jump at random seconds between idle and seven instances' load."""
    draw = random.Random(seed)
    steps = [(draw.randrange(700), draw.choice([0.5, 3.0, 15.0, 30.0, 50.0])) for _ in range(5)]

    def rate(_model: str, t_s: int) -> float:
        return max((step for step in steps if step[0] <= t_s), default=(0, 8.0))[1]

    return rate


@pytest.mark.parametrize("seed", [1, 2])
def test_a_change_of_leader_at_any_tick_changes_no_decision(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At random ticks a successor restores its state from the records on the topics, and decides
    on the observations of the following ticks. Only its entries in the ledger may differ."""
    twins, draw = Twins(), random.Random(seed)
    monkeypatch.setattr(worlds, "decide", twins.decide)
    spot = pool("one", nodes=12, per_node=1, usd=2.0)
    w = world(swinging(seed), service(scale_in_after_s=60.0), pools=(spot,), seed=seed, full_s=3)
    acted = 0
    for _ in range(8):
        w.run(draw.randrange(20, 60))
        while w.state.pending:
            w.tick()
        twins.twin = successor(w, [*w.ledger.values()])
        twins.effects.clear()
        for _ in range(FOLLOWED_TICKS):
            w.tick()
            mine, others = twins.effects[-1]
            assert mine == others
            acted += bool(mine)
        twins.twin = None
    assert acted, "decisions were compared"


def test_the_ledger_holds_every_learnt_part_of_the_state() -> None:
    """All parts written at once restore the whole state."""
    w = world(swinging(3), service(scale_in_after_s=60.0), seed=3).run(260)
    while w.state.pending:
        w.tick()
    first = replace(w.state, term=replace(w.state.term, begun=False))
    entries = [one.record for one in record_ledger(first, w.state, w.cluster, w.now_ms)]
    found = successor(w, entries)
    for field in dataclasses.fields(ControllerState):
        if field.name not in NEVER_SAME:
            assert getattr(found, field.name) == getattr(w.state, field.name), field.name
    term = w.state.term
    assert (found.term.started_ms, found.term.ticked_ms) == (term.started_ms, term.ticked_ms)


def test_entries_are_written_on_change_and_once_a_minute() -> None:
    """Steady traffic changes estimates with every second."""
    w = world(8.0).run(200)
    written = [e.record for e in w.effects if isinstance(e, PublishLedger)]
    w.effects.clear()
    w.run(120)
    later = [e.record for e in w.effects if isinstance(e, PublishLedger)]
    assert 2 <= sum(one.kind == "model" for one in later) <= 30
    assert sum(len(encode(one)) for one in later) / 120 < 2_000
    assert {one.kind for one in written} >= {"fleet", "model", "groups", "combos"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


def real_entries() -> list[LedgerEntry]:
    w = world(8.0, seed=5).run(90)
    return [*w.ledger.values()]


ENTRIES = real_entries()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_damaged_entry_is_refused_or_restores_a_state(data: st.DataObject) -> None:
    """Any value in an entry may be replaced by other JSON. Reading raises InvalidValue or gives a
    part; restoring raises nothing."""
    entry = data.draw(st.sampled_from(ENTRIES))
    tree: Any = orjson.loads(entry.value)
    holder = tree
    while True:
        place = data.draw(st.sampled_from(list(holder) if isinstance(holder, dict)
                                          else range(len(holder))))  # fmt: skip
        inside = holder[place]
        if not (isinstance(inside, (dict, list)) and inside) or data.draw(st.booleans()):
            break
        holder = inside
    try:
        holder[place] = data.draw(JSON)
        damaged = replace(entry, value=orjson.dumps(tree).decode())
    except (orjson.JSONEncodeError, UnicodeError):
        return
    try:
        read_part(damaged)
    except InvalidValue as error:
        assert error.field and error.allowed
    others = [one for one in ENTRIES if one.key != entry.key]
    w = world(8.0)
    restore(w.cluster, {}, {}, {}, (), w.now_ms, ledger=[*others, damaged])


def test_an_entry_of_a_clock_that_was_ahead_moves_to_the_readers_clock() -> None:
    w = world(8.0).run(60)
    behind_ms = w.now_ms - 3_600_000
    found = restore(w.cluster, {}, {}, {}, (), behind_ms, ledger=[*w.ledger.values()])
    assert found.term.ticked_ms == behind_ms and found.term.started_ms <= behind_ms
    assert found.models["chat"].hysteresis.last_out_ms <= behind_ms
