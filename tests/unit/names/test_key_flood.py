"""Records of undeclared names: their keys are deleted, and memory is bounded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from autoscaler.domain.node_names import node_ids
from streams.controller.key_sweep import MOST_BYTES, KeySweep
from streams.loop.declared_names import DeclaredNames
from tests.unit.names.names_world import T0, Log, NamesWorld, without_hours
from topics.codec import encode
from topics.keys import Keys
from topics.name_life import KEYS
from topics.records import (
    Assignment,
    Availability,
    Control,
    DesiredInstance,
    Leadership,
    LedgerEntry,
    Price,
    Routes,
    Status,
)
from topics.topic_table import key_of, topic_of

MANY = 200
RUNNING = (DesiredInstance("i1", "mini", "aggregated", "mini:a1@eu/l4/on-demand:1", (0,)),)


def write(log: Log, record: object, now_ms: int, name: str = "") -> None:
    log.write(topic_of(record).name, (name.encode() or key_of(record)), encode(record), now_ms)


def flood(w: NamesWorld, count: int, at: int = 0) -> None:
    """`count` unsigned records of new names on each topic, every third one unreadable."""
    for n in range(at, at + count):
        name, token = f"x{n}", (0, 1, 10**9)[n % 3]
        for record in (
            Assignment(name, "p", 1, token, T0, RUNNING),
            Routes(name, 1, token, T0, 1.0, 1.0),
            Status(name, "p", "e", 1, T0),
            Price(name, 1.0, T0),
            Availability(name, 1, T0),
            LedgerEntry("model", name, 1, T0, "{}"),
            Leadership(name, "c", "standby", T0),
        ):
            write(w.log, record, w.now_ms)
        for topic in ("plans", "names", "services", "controls", "assignments", "routes"):
            w.log.write(topic, b"\xff\x00" + name.encode(), b"junk" * 10, w.now_ms)


@pytest.mark.parametrize("keys", [Keys(), Keys(cluster="k" * 32)], ids=["unsigned", "signed"])
def test_keys_of_forged_names_are_deleted_and_use_no_memory(tmp_path: Path, keys: Keys) -> None:
    w = NamesWorld(tmp_path, keys)
    w.run(3)
    before = without_hours(w.log.keys())
    flood(w, MANY)
    w.run(1)
    for new_leader in (False, True):
        if new_leader:
            w.lead()
        w.rest()
        w.now_ms += 3_600_000
        w.run(2)
    w.log.compact(expire=True)
    w.lead()
    w.run(2)
    assert without_hours(w.log.keys()) == before
    latest = w.latest
    assert latest.desired.size() == len(w.loop.state.published.routes) == 1
    assert not (latest.statuses or latest.supply.usd_per_node_h or latest.declared.services)
    assert w.models() == ["mini"] and set(w.table.routers) == {"mini"} and len(w.sweep) <= 10
    assert len(w._signer._states) < 20 and len(w.control._verifier._last_ms) < MANY


def test_the_controller_stores_few_assignments_of_undeclared_nodes(tmp_path: Path) -> None:
    """They may belong to withdrawn nodes with instances, so the first 2,000 are stored."""
    w = NamesWorld(tmp_path)
    forged = Assignment("x", "p", 1, 0, T0)
    stored: list[object] = []
    known = DeclaredNames(lambda: w.config.cluster, {}, stored=lambda: len(stored))
    for _ in range(3_000):
        stored += [forged] if known.admits("assignments", forged) else []
    assert len(stored) == 2_000 + 3 + 1 and known.dropped["assignments"] == 996


def test_unsigned_junk_causes_few_dead_letters(tmp_path: Path) -> None:
    """Unreadable records too, on every signed topic. Each topic has its own limit."""
    w = NamesWorld(tmp_path, Keys(cluster="k" * 32))
    w.run(1)
    topics = ("assignments", "routes", "status", "services", "controls", "supply.prices")
    for name in topics:
        for at in range(200):
            w.log.write(name, b"k%d" % at, b"junk", w.now_ms)
    w.run(2)
    assert Counter(poison.topic for poison in w.poison) == dict.fromkeys(topics, 20)


def test_a_forged_assignment_of_a_declared_node_is_overwritten_and_not_deleted(
    tmp_path: Path,
) -> None:
    """An executor that started its instances stops them only if it reads an assignment."""
    w = NamesWorld(tmp_path)
    w.run(2)
    node = node_ids(w.config.cluster.pools[0])[0]
    write(w.log, Assignment(node, w.config.cluster.pools[0].id, 9, 0, T0, RUNNING), w.now_ms)
    w.run(5)
    last = w.log.topics["assignments"][-1]
    assert last.key == node.encode() and last.value is not None
    assert b'"instances":[]' in last.value


def test_a_deleted_key_of_a_name_in_use_is_written_again(tmp_path: Path) -> None:
    w = NamesWorld(tmp_path)
    w.run(2)
    w.log.write("routes", b"mini", None, w.now_ms)
    w.run(2)
    assert b"mini" in w.log.keys()["routes"] and "mini" in w.table.routers


def test_above_its_limit_the_sweep_reads_the_topic_again() -> None:
    written, again = [], []

    class Writes:
        def put(self, record: object) -> None:
            written.append(record)

    sweep = KeySweep(lambda _topic, _key: False, Writes())
    sweep.reread = again.append
    for at in range(100):
        sweep.note("assignments", b"%050d" % at * 1000, 0.0)
    assert len(sweep) * 50_000 <= MOST_BYTES
    sweep.sweep(KEYS["assignments"].silent_s)
    sweep.sweep(KEYS["assignments"].silent_s)
    assert again == ["assignments"] and len(written) == 83 and len(sweep) == 0


def test_controls_stay_for_declared_and_go_with_gone_models(tmp_path: Path) -> None:
    w = NamesWorld(tmp_path)
    w.declare("a")
    for model in ("a", "mini"):
        write(w.log, Control(model, "pause", True, "ann", "why", T0), w.now_ms)
    w.run(2)
    w.withdraw("a")
    w.rest()
    assert w.log.keys()["controls"] == {b"pause/mini"}
