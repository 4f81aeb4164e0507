"""Faults of the broker's storage and of the disk: promises hold, and defects of the product that
only such a fault reveals are detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.decide import ControllerState, restore
from loadtests.invariants.log import COMPACTED, Log
from loadtests.invariants.scenario import Fault, Load, scenario
from loadtests.invariants.simulated_run import World
from streams.clock import Clock
from streams.controller import leadership_term
from streams.controller.topic_restore import TopicRestore
from streams.loop.control_state import DesiredRecords
from streams.loop.tick_loop import Loop
from topics.records import Assignment, Routes
from topics.storage import durable_files
from topics.topic_table import key_of

ASSIGNMENTS = (COMPACTED.index("assignments") + 0.5) / len(COMPACTED)
TAKEOVER = Fault("leader killed", 80.0, 90.0, 0.0)


def broken_lines(*faults: Fault, end_s: float = 120.0) -> set[str]:
    """The lines that broke in a short run with these faults, under a steady load."""
    records = any(fault.kind == "disk full" for fault in faults)
    steady = {model: Load(5.0, 1e6, 1e6, 1.0, 1.0) for model in scenario(11).loads}
    calm = replace(
        scenario(11),
        loads=steady,
        faults=faults,
        end_s=end_s,
        skew_s=(0.0, 0.0),
        transactional=True,
        records=records,
    )
    return {broken.line for broken in World(calm).run()}


def test_promises_hold_under_each_fault_of_storage() -> None:
    """One run with all of them, one after the other."""
    faults = (
        Fault("compaction", 45.0, 75.0, 0.0),
        Fault("wrong partitions", 45.0, 60.0, 0.0),
        Fault("disk full", 50.0, 65.0, 0.1),
        Fault("topic deleted", 62.0, 90.0, ASSIGNMENTS),
        TAKEOVER,
        Fault("keys deleted", 95.0, 100.0, 0.0),
        Fault("broker clock", 100.0, 110.0, 0.0),
        Fault("leader changes", 110.0, 130.0, 0.0),
    )
    assert broken_lines(*faults, end_s=175.0) == set()


def leaving_forged_records(patch: pytest.MonkeyPatch) -> None:
    """The leader does not overwrite forged records, so compaction removes the true ones."""
    for name in ("overwrite", "overwrite_forged"):
        patch.setattr(Loop, name, lambda *_: None)


def ignoring_tombstones(patch: pytest.MonkeyPatch) -> None:
    """The leader does not write a deleted key in use again."""
    patch.setattr(TopicRestore, "restore_key", lambda *_: None)


def leaving_new_topics_empty(patch: pytest.MonkeyPatch) -> None:
    """The leader does not fill a topic that was created again."""
    patch.setattr(TopicRestore, "__call__", lambda *_: None)


def keeping_the_last_record_read(patch: pytest.MonkeyPatch) -> None:
    """The order of reading decides which record of a key counts."""

    def take(self: DesiredRecords, record: Any) -> None:
        kept: dict[str, Any] = self.ledger
        if isinstance(record, (Assignment, Routes)):
            kept = self.assignments if isinstance(record, Assignment) else self.routes
        kept[(key_of(record) or b"").decode()] = record

    patch.setattr(DesiredRecords, "take", take)


def trusting_the_brokers_clock(patch: pytest.MonkeyPatch) -> None:
    """Append times count as times of this host."""
    patch.setattr(Clock, "event_ms", lambda _self, append_ms: append_ms)


def forgetting_the_memory(patch: pytest.MonkeyPatch) -> None:
    """A new leader does not restore the ledger."""

    def without(*args: Any, **more: Any) -> ControllerState:
        return restore(*args, **{**more, "ledger": ()})

    patch.setattr(leadership_term, "restore", without)


def writing_once(patch: pytest.MonkeyPatch) -> None:
    """A write counts as whole although the system took fewer bytes."""
    module: Any = durable_files
    patch.setattr(module, "_write_all", lambda fd, data: module.os.write(fd, data))


@pytest.mark.parametrize(
    ("defect", "faults", "lines"),
    [
        (
            leaving_forged_records,
            [Fault("forged", 95.0, 96.0, 0.0), Fault("compaction", 96.0, 115.0, 0.0)],
            {"takeover"},
        ),
        (ignoring_tombstones, [Fault("keys deleted", 95.0, 115.0, 0.0)], {"takeover"}),
        (
            leaving_new_topics_empty,
            [Fault("topic deleted", 95.0, 112.0, ASSIGNMENTS)],
            {"takeover"},
        ),
        (
            keeping_the_last_record_read,
            [Fault("wrong partitions", 45.0, 75.0, 0.0), TAKEOVER],
            {"takeover"},
        ),
        (trusting_the_brokers_clock, [Fault("broker clock", 60.0, 100.0, 0.0)], {"17"}),
        (forgetting_the_memory, [Fault("leader changes", 45.0, 75.0, 0.0)], {"takeover"}),
        (writing_once, [Fault("disk full", 50.0, 60.0, 0.1)], {"22"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_defect_is_detected(
    defect: Callable[[pytest.MonkeyPatch], None],
    faults: list[Fault],
    lines: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each defect breaks a promise under the fault that reveals it."""
    defect(monkeypatch)
    assert broken_lines(*faults) & lines


def test_compaction_keeps_the_last_record_of_each_key() -> None:
    """Offsets stay. Tombstones disappear only when they expire, and the head is not compacted."""
    log = Log(lambda: 0.0, transactional=True)
    part = log.parts["ledger", 0]
    for key, value in [(b"a", b"1"), (b"b", b"1"), (b"a", b"2"), (b"b", None), (b"a", b"3")]:
        log.append("ledger", key, value)
    part.compact(before=4, expire=False)
    assert [(e.offset, e.value) for e in part.entries] == [(2, b"2"), (3, None), (4, b"3")]
    part.compact(before=5, expire=True)
    assert [(e.offset, e.value) for e in part.entries] == [(4, b"3")]
    assert log.append("ledger", b"c", b"1").offset == 5
