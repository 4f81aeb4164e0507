"""Runs long steps in the order of arrival, one per iteration of the event loop. So short work,
which uses no scheduler, waits for at most one step of each scheduler.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Step = Callable[[], None]


class FairScheduler:
    """Runs one step per iteration of the event loop."""

    __slots__ = ("_queued", "_scheduled")

    def __init__(self) -> None:
        self._queued: deque[Step] = deque()
        self._scheduled = False

    def run_or_queue(self, step: Step) -> None:
        """Run `step` now if no step has run in this iteration, otherwise queue it."""
        if self._scheduled:
            self._queued.append(step)
            return
        self._schedule()
        step()

    def queue(self, step: Step) -> None:
        """Queue `step`. The step runs in the next iteration at the earliest."""
        self._queued.append(step)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        self._scheduled = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not self._queued:
            self._scheduled = False
            return
        asyncio.get_running_loop().call_soon(self._next)
        self._queued.popleft()()
