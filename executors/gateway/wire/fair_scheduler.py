"""Turns: work that one client could make much of is done once per iteration of the event loop.

Owns the order, first come, first served. Whoever has only a little to do asks for no turn, and so
never waits for more than one of these.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

Step = Callable[[], None]


class Turns:
    """One step an iteration."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[Step] = deque()
        self._running = False

    def take(self, step: Step) -> None:
        """Take `step` now if this iteration's turn is free, otherwise when it is its turn."""
        if self._running:
            self._waiting.append(step)
            return
        self._run()
        step()

    def wait(self, step: Step) -> None:
        """Take `step` in the next iteration at the earliest."""
        self._waiting.append(step)
        if not self._running:
            self._run()

    def _run(self) -> None:
        self._running = True
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        if not self._waiting:
            self._running = False
            return
        asyncio.get_running_loop().call_soon(self._next)
        self._waiting.popleft()()
