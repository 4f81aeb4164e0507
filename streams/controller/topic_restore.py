"""Restores the leader's records on topics that were deleted and created again, and the deleted keys
of names in use.

Every controller notes such topics as it reads; only the leader writes. Executors and feeds write
their topics again themselves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from streams.loop.tick_loop import Loop, TickResult
from topics.ledger import MOST_SLOTS, LedgerEntry
from topics.topic_table import ASSIGNMENTS, CONTROLS, LEDGER, NAMES, ROUTES, SERVICES

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
_AT_ONCE = 2000


class TopicRestore:
    """The records that the leader must keep on the topics, by topic and key. A watcher of the
    leader's ticks."""

    def __init__(self, loop: Loop) -> None:
        latest = loop.latest
        self._loop = loop
        self._created: set[str] = set()
        self._waiting: list[tuple[str, str]] = []
        self._kept: dict[str, Callable[[], Mapping[str, Any]]] = {
            ASSIGNMENTS.name: lambda: loop.state.published.assignments,
            ROUTES.name: lambda: loop.state.published.routes,
            LEDGER.name: lambda: latest.desired.ledger,
            NAMES.name: lambda: (
                {"services": latest.declared.finalized} if latest.declared.finalized else {}
            ),
            SERVICES.name: lambda: latest.declared.services,
            CONTROLS.name: lambda: {one.topic_key: one for one in latest.controls.values()},
        }

    def note_created(self, topic: str) -> None:
        """Note that the topic with the short name `topic` was created again."""
        if topic not in self._created:
            log.error("topic %s was deleted and created again", topic)
            self._created.add(topic)

    def restore_key(self, topic: str, key: str) -> None:
        """Write the record of a deleted key again. Call it before the record is dropped. A
        tombstone on `services` or `controls` is an operator's command."""
        commanded = topic in (SERVICES.name, CONTROLS.name)
        if commanded or topic not in self._kept or not self._loop.leads():
            return
        record = self._kept[topic]().get(key)
        if record is not None:
            if topic == LEDGER.name:
                self._loop.say_ledger_again()
            self._loop.say(record)

    def __call__(self, tick: TickResult) -> None:
        """Write the records of the topics noted so far, at most 2000 with each tick."""
        for topic in sorted(self._created & self._kept.keys()):
            kept = self._kept[topic]()
            if topic == LEDGER.name:
                # The next tick records all else.
                self._loop.say_ledger_again()
                kept = {key: one for key, one in kept.items() if _is_over(one, tick.now_ms)}
            self._waiting += ((topic, key) for key in kept)
        self._created.clear()
        for topic, key in self._waiting[:_AT_ONCE]:
            record = self._kept[topic]().get(key)
            if record is not None:
                self._loop.say(record)
        del self._waiting[:_AT_ONCE]


def _is_over(entry: LedgerEntry, now_ms: int) -> bool:
    """Whether `entry` has the arrivals of an hour that no tick records again."""
    present = {(now_ms // _HOUR_MS - back) % MOST_SLOTS for back in (0, 1)}
    return entry.kind == "arrivals" and entry.slot not in present
