"""Damage to a ledger before the next leader reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import orjson

from autoscaler.state.ledger_limits import on_clock
from topics.ledger import LedgerEntry

Entries = Mapping[str, LedgerEntry]
Damage = Callable[[Entries, Entries, int], Entries]
"""The ledger that a new leader finds. Arguments: the entries by key, those of `OLD_MS` ago, and the
time of the change in ms."""

OLD_MS = 300_000
_AHEAD_MS = 3_600_000


def intact(now: Entries, _old: Entries, _at_ms: int) -> Entries:
    """Every entry as it was written."""
    return now


def missing(now: Entries, _old: Entries, at_ms: int) -> Entries:
    """No entry of one model."""
    models = sorted({entry.model for entry in now.values()} - {""})
    lost = models[at_ms // 1000 % len(models)]
    return {key: entry for key, entry in now.items() if entry.model != lost}


def empty(_now: Entries, _old: Entries, _at_ms: int) -> Entries:
    """No entry."""
    return {}


def old(_now: Entries, old: Entries, _at_ms: int) -> Entries:
    """The entries of some minutes ago."""
    return old


def later_form(now: Entries, _old: Entries, at_ms: int) -> Entries:
    """Entries of a later version: more fields, and one part of each kind with an unknown form."""

    def of_later(entry: LedgerEntry, refused: bool) -> LedgerEntry:
        tree = {**orjson.loads(entry.value), "added_later": {"a": [1, "b"]}}
        if refused:
            tree = {name: {"form": 2, "was": value} for name, value in tree.items()}
        return replace(entry, value=orjson.dumps(tree).decode())

    refused = {entry.kind: key for key, entry in sorted(now.items(), reverse=at_ms % 2 == 1)}
    return {key: of_later(entry, key in refused.values()) for key, entry in now.items()}


def clock_ahead(now: Entries, _old: Entries, at_ms: int) -> Entries:
    """Entries of a leader whose clock was an hour ahead."""
    return {
        key: replace(
            entry,
            at_ms=entry.at_ms + _AHEAD_MS,
            value=orjson.dumps(
                on_clock(orjson.loads(entry.value), -_AHEAD_MS, at_ms + _AHEAD_MS)
            ).decode(),
        )
        for key, entry in now.items()
    }


DAMAGES: Mapping[str, Damage] = {
    "intact": intact,
    "missing": missing,
    "empty": empty,
    "old": old,
    "later_form": later_form,
    "clock_ahead": clock_ahead,
}
