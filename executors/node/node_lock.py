"""Whose node it is: two executors of one node must not both start engines. Pure.

On one host the lock in the state folder decides. Across hosts the status topic does: an executor
that hears another one alive stays silent and starts nothing; one that hears nobody says its status
and starts nothing from an assignment before it has read that status back. The topic has one order,
so of two that begin at the same time only one reads itself first.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.fleet import Status

_SILENT_S, _SILENT_REAL_S = 30.0, 10.0
_LONG_AGO = 10


@dataclass(slots=True)
class Occupancy:
    """One node, as seen by the executor with this boot and place, at the time base's speed. Times
    are domain ms, append times the broker's."""

    node: str
    boot: str
    place: str
    speed: float = 1.0
    claimed: bool = False
    other: Status | None = None
    other_until_ms: int = 0
    other_append_ms: int = -(10**15)

    @property
    def silent_ms(self) -> int:
        """Without a word for as long another executor no longer holds a node: three times the
        heartbeat of an idle one."""
        return int(1000 * max(_SILENT_S, _SILENT_REAL_S * self.speed))

    def heard(self, status: Status, append_ms: int, now_ms: int, live: bool) -> None:
        """A status of this node was read from the topic. live: it was written while we listened."""
        if status.boot == self.boot:
            # Only the broker knows how long the other has been silent; clocks of hosts differ.
            apart_ms = abs(append_ms - self.other_append_ms) * self.speed
            if not self.claimed and apart_ms < self.silent_ms:
                self.other_until_ms = max(self.other_until_ms, now_ms + self.silent_ms)
            self.claimed = self.claimed or not self.contested(now_ms)
            return
        if status.place == self.place or not status.boot:
            return  # an earlier life of ours: the lock says that it is over
        self.other, self.other_append_ms = status, append_ms
        # Before we have said anything, nobody is waited for whose own clock says "long ago".
        if live or abs(now_ms - status.at_ms) <= _LONG_AGO * self.silent_ms:
            self.other_until_ms = now_ms + self.silent_ms

    def lapsed(self) -> None:
        """We could not say a word for a while: whoever spoke meanwhile may hold the node."""
        self.claimed = False

    def contested(self, now_ms: int) -> bool:
        """Whether another executor holds it."""
        return not self.claimed and now_ms < self.other_until_ms

    def fault(self, now_ms: int) -> str:
        """What to tell people, "" where nobody else is heard."""
        if self.other is None or now_ms >= self.other_until_ms:
            return ""
        who = f"executor {self.other.executor} ({self.other.place or 'unknown place'})"
        if self.contested(now_ms):
            return f"{self.node} is run by {who}; nothing is started here"
        return f"{who} claims {self.node} too"
