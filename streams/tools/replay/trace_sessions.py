"""Sessions of a trace: which requests are turns of one conversation, and the delays between turns.

A turn waits for the answer to the previous turn, then for the recorded delay. If a turn has only a
delay, its arrival is estimated with an answer of usual speed. A replay does not use that estimate.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field

_FIRST_TOKEN_MS, _PER_TOKEN_MS = 500.0, 30.0
NO_SESSION = -1
NO_DELAY_MS = -1.0


@dataclass(slots=True)
class Sessions:
    """Numbers the sessions of a record, row by row in the order of the file."""

    _of_key: dict[Hashable, int] = field(default_factory=dict)
    _of_chat: dict[Hashable, int] = field(default_factory=dict)
    _next: int = 0

    def of_key(self, key: Hashable) -> tuple[int, bool]:
        """The session of the rows with this `key`, and whether an earlier row belongs to the
        session."""
        known = key in self._of_key
        if not known:
            self._of_key[key] = self._new()
        return self._of_key[key], known

    def of_chat(self, chat: Hashable, parent: Hashable) -> tuple[int, bool]:
        """The session of a chat that continues `parent`.

        Only the first continuation of a parent belongs to the parent's session; a second
        continuation begins a new session.
        """
        found = self._of_chat.pop(parent, None)
        self._of_chat[chat] = self._new() if found is None else found
        return self._of_chat[chat], found is not None

    def _new(self) -> int:
        self._next += 1
        return self._next - 1


def arrivals_with_turns(
    at_ms: array[float],
    outputs: array[int],
    sessions: array[int],
    delays_ms: array[float],
    latencies_ms: array[float],
) -> tuple[array[float], array[float]]:
    """Arrivals of all rows, and the delay before each turn (-1: unknown, or a first turn).

    All arrays have the same length, by row of the file. at_ms: nan if the row has only a delay; the
    first turn of a session has a time. sessions: -1 for none. delays_ms, latencies_ms: -1 for none.
    """
    last: dict[int, int] = {}
    found, pauses = array("d", at_ms), array("d", delays_ms)
    for row, session in enumerate(sessions):
        before = last.get(session, -1) if session != NO_SESSION else -1
        if session != NO_SESSION:
            last[session] = row
        if before < 0:
            pauses[row] = NO_DELAY_MS
        elif found[row] != found[row]:
            took_ms = latencies_ms[before]
            if took_ms < 0.0:
                took_ms = _FIRST_TOKEN_MS + _PER_TOKEN_MS * outputs[before]
            pauses[row] = max(0.0, delays_ms[row])
            found[row] = found[before] + took_ms + pauses[row]
        elif pauses[row] < 0.0 and latencies_ms[before] >= 0.0:
            pauses[row] = max(0.0, found[row] - found[before] - latencies_ms[before])
    return found, pauses


def of_several_turns(sessions: array[int]) -> array[int]:
    """`sessions` without those of only one turn. Empty if no session has several."""
    turns = Counter(sessions)
    if not any(count > 1 for session, count in turns.items() if session != NO_SESSION):
        return array("q")
    return array("q", [session if turns[session] > 1 else NO_SESSION for session in sessions])
