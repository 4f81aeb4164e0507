"""Virtual time of a simulation, in ms since its start: runs scheduled actions in order of time.

Actions with equal times run in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class EventQueue:
    """Scheduled actions and the clock. `now_ms` moves only in `run`, and never backwards."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._events: list[tuple[float, int, Action]] = []
        self._noted = 0

    def at(self, at_ms: float, action: Action) -> None:
        """Schedule `action` at `at_ms`. If that time has passed, `action` runs directly after the
        current action."""
        self._noted += 1
        due_ms = at_ms if at_ms > self.now_ms else self.now_ms
        heapq.heappush(self._events, (due_ms, self._noted, action))

    def every(self, period_ms: float, action: Action) -> None:
        """Run `action` now, and then every `period_ms`."""

        def again() -> None:
            action()
            self.at(self.now_ms + period_ms, again)

        self.at(self.now_ms, again)

    def run(self, until_ms: float) -> None:
        """Run every action that is due by `until_ms`."""
        events = self._events
        while events and events[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(events)
            action()
        self.now_ms = max(self.now_ms, until_ms)
