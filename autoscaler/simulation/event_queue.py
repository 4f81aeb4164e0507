"""Virtual time: what happens next, in order of time, ties in the order they were noted.

Owns the clock of a simulation, in ms since its start. Knows nothing of what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Agenda:
    """Events to come. `now_ms` moves only in `run`, and never backwards."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._noted = 0

    def at(self, at_ms: float, action: Action) -> None:
        """Do `action` at `at_ms`; at once, but after what runs now, if that has passed."""
        self._noted += 1
        due_ms = at_ms if at_ms > self.now_ms else self.now_ms
        heapq.heappush(self._events, (due_ms, self._noted, action))

    def every(self, period_ms: float, action: Action) -> None:
        """Do `action` at once and each `period_ms` after that."""

        def again() -> None:
            action()
            self.at(self.now_ms + period_ms, again)

        self.at(self.now_ms, again)

    def run(self, until_ms: float) -> None:
        """Let everything happen that is due before or at `until_ms`."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(events)
            action()
        self.now_ms = max(self.now_ms, until_ms)
