"""The check for changes of leader reports purchases that a change causes."""

from __future__ import annotations

from dataclasses import replace

import orjson

from loadtests.leader_changes import run
from loadtests.ledger_damage import Entries, intact


def longer_lengths(now: Entries, _old: Entries, _at_ms: int) -> Entries:
    """A ledger that has lost the measured lengths, and holds eight times as long ones."""
    found = dict(now)
    for key, entry in now.items():
        if entry.kind == "model":
            tree = orjson.loads(entry.value)
            lengths = tree["state"]["estimate"]["lengths"]
            lengths["input_tokens"] *= 8
            lengths["output_tokens"] *= 8
            found[key] = replace(entry, value=orjson.dumps(tree).decode())
    return found


def test_a_change_of_leader_buys_only_if_the_ledger_loses_the_lengths() -> None:
    kept = run(2, 60.0, 1, intact)
    assert kept.changes == 1 and kept.purchases == ()
    lost = run(2, 60.0, 1, longer_lengths)
    assert {one.model for one in lost.purchases} == {"chat", "code", "mini"}
