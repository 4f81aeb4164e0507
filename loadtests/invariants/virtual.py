"""A process of the control plane on a virtual clock: an asyncio loop that advances only on request.

Each process has its own loop. So one can be suspended (SIGSTOP), resumed or killed while the others
run. No process really sleeps: a wait ends when the virtual clock reaches its end.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _NoSelector(selectors.BaseSelector):
    """A selector that never waits.

    It calls `idle` with the seconds that the loop would wait; None = without limit.
    """

    def __init__(self) -> None:
        self.idle: Callable[[float | None], None] = lambda _wait_s: None
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self.idle(timeout)
        return []

    def get_map(self) -> Any:
        return self._map


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        self.until_s = 0.0
        waiting = _NoSelector()
        super().__init__(waiting)
        waiting.idle = self._idle

    def time(self) -> float:
        return self.now_s

    def _idle(self, wait_s: float | None) -> None:
        """Advance the clock to the next timer. Stop the loop if that timer is
        due after `until_s`.
        """
        if wait_s is None or self.now_s + wait_s > self.until_s + 1e-9:
            self.now_s = max(self.now_s, self.until_s)
            self.stop()
        else:
            self.now_s += wait_s


class Process:
    """One process: `main` runs whenever `run_until` advances the clock of the process."""

    def __init__(self, now_s: float) -> None:
        self._loop = _Loop()
        self._loop.now_s = now_s
        self._loop.set_exception_handler(lambda _loop, _context: None)
        self._main: asyncio.Task[None] | None = None

    @property
    def now_s(self) -> float:
        """Present time on the clock of the process."""
        return self._loop.now_s

    def start(self, main: Coroutine[Any, Any, None]) -> None:
        """Start `main`. It runs from the next `run_until` on."""
        self._main = self._loop.create_task(main)

    def run_until(self, now_s: float) -> None:
        """Run the process up to `now_s`; raises the errors of `main`."""
        self._loop.until_s = now_s
        self._loop.run_forever()
        if self._main is not None and self._main.done():
            self._main.result()

    def sleep_until(self, now_s: float) -> None:
        """Advance the clock to `now_s` without running the process, as if it were suspended."""
        self._loop.now_s = max(self._loop.now_s, now_s)

    def kill(self) -> None:
        """End the process for good.

        The caller must cut its link first, so that it writes nothing at its end.
        """
        self._loop.until_s = float("inf")
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self._loop.run_until_complete(asyncio.wait(tasks))
            for task in tasks:
                task.cancelled() or task.exception()
        self._loop.close()
