"""Results of operator commands, in the order in which the broker stored them.

A command is decided when this process reads it back from its topic, because the topic's order
decides between two commands for the same version (`topics.controls`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from topics.controls import Control
from topics.decisions import Decision

_KEPT_PROPOSALS = 2000
OnRead = Callable[[Control], None]
"""Called with the command in force once a command was read: the command itself, or the one that
came before it."""


@dataclass(slots=True)
class CommandLog:
    """waiting: callbacks by command id. ended_proposals: by number, the decisions that ended
    the last proposals; a later leader may end those of an earlier one. outdated: Kafka keys of
    commands that are not in force, oldest first; they may be deleted from the topic."""

    waiting: dict[str, OnRead] = field(default_factory=dict)
    outdated: dict[str, None] = field(default_factory=dict)
    ended_proposals: dict[int, Decision] = field(default_factory=dict)

    def ended(self, decision: Decision) -> None:
        """`decision` of a leader ended a proposal."""
        self.ended_proposals[decision.proposal] = decision
        if len(self.ended_proposals) > _KEPT_PROPOSALS:
            del self.ended_proposals[next(iter(self.ended_proposals))]

    def won(self, record: Control) -> None:
        """`record` is in force."""
        self.outdated.pop(record.topic_key, None)
        self._tell(record, record)

    def lost(self, record: Control, winner: Control) -> None:
        """`record` has no effect, because `winner` was first. A command that is read twice is its
        own winner."""
        if record.topic_key != winner.topic_key:
            self.outdated[record.topic_key] = None
        self._tell(record, winner)

    def replaced(self, record: Control, before: Control) -> None:
        """`record` is in force instead of `before`."""
        if record.topic_key != before.topic_key:
            self.outdated[before.topic_key] = None

    def _tell(self, record: Control, in_force: Control) -> None:
        waits = self.waiting.pop(record.command_id, None)
        if waits is not None:
            waits(in_force)
