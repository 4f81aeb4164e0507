"""Mutual exclusion of executors on a node: two executors must not both start engines. Pure.

On one host the lock file in the state folder decides, across hosts the status topic. An executor
that reads statuses of another live executor publishes nothing and starts nothing. Otherwise it
publishes its status, and starts nothing from an assignment until it has read this status back.
Because the topic is ordered, only one of two executors that start at the same time reads its own
status first.
"""

from __future__ import annotations

from dataclasses import dataclass

from topics.fleet import Status

_SILENT_S, _SILENT_REAL_S = 30.0, 10.0
_LONG_AGO = 10


@dataclass(slots=True)
class NodeLock:
    """The lock on one node, as seen by the executor with this `boot` and `place`.

    speed: speed of the time base. claimed: whether this executor holds the node. other: the last
    status of another executor; other_until_ms: domain ms until which this status is valid;
    other_append_ms: its append time by the broker's clock.
    """

    node: str
    boot: str
    place: str
    speed: float = 1.0
    claimed: bool = False
    other: Status | None = None
    other_until_ms: int = 0
    other_append_ms: int = -(10**15)

    @property
    def silence_limit_ms(self) -> int:
        """Domain ms without a status after which an executor no longer holds its node: three
        heartbeats of an idle node."""
        return int(1000 * max(_SILENT_S, _SILENT_REAL_S * self.speed))

    def on_status(self, status: Status, append_ms: int, now_ms: int, live: bool) -> None:
        """Handle a status of this node. live: whether it was appended after this executor had
        caught up."""
        if status.boot == self.boot:
            # Measure the other executor's silence by append times, because the clocks of hosts
            # differ.
            silence_ms = abs(append_ms - self.other_append_ms) * self.speed
            if not self.claimed and silence_ms < self.silence_limit_ms:
                self.other_until_ms = max(self.other_until_ms, now_ms + self.silence_limit_ms)
            self.claimed = self.claimed or not self.contested(now_ms)
            return
        if status.place == self.place or not status.boot:
            # from an earlier process of this executor, which has exited, as the lock file proves
            return
        self.other, self.other_append_ms = status, append_ms
        # A status read during catch-up counts only if its timestamp is recent enough.
        if live or abs(now_ms - status.at_ms) <= _LONG_AGO * self.silence_limit_ms:
            self.other_until_ms = now_ms + self.silence_limit_ms

    def drop_claim(self) -> None:
        """Give up the claim: this executor published nothing for a while, so another executor may
        hold the node."""
        self.claimed = False

    def contested(self, now_ms: int) -> bool:
        """Whether another executor holds the node."""
        return not self.claimed and now_ms < self.other_until_ms

    def fault(self, now_ms: int) -> str:
        """The conflict as text for operators; "" without a conflict."""
        if self.other is None or now_ms >= self.other_until_ms:
            return ""
        who = f"executor {self.other.executor} ({self.other.place or 'unknown place'})"
        if self.contested(now_ms):
            return f"{who} holds {self.node}; this executor starts nothing"
        return f"{who} also claims {self.node}"
