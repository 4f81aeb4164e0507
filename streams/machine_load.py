"""Time limits on a loaded machine: seconds in which a process could have worked.

A time limit for the start of a process is meant for an idle machine. With twice as many runnable
processes as processors, the same start takes twice as long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable


def slowdown() -> float:
    """Runnable processes per processor over the last minute, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class IdleTime:
    """Counts the seconds since its start that count against a time limit: a second in which every
    process runs at a third of its speed counts as a third of a second."""

    def __init__(
        self,
        monotonic_s: Callable[[], float] = time.monotonic,
        slowed: Callable[[], float] = slowdown,
    ) -> None:
        self._monotonic_s, self._slowed = monotonic_s, slowed
        self._at_s = monotonic_s()
        self._counted_s = 0.0

    def passed_s(self) -> float:
        """Counted seconds. Call it at least every few seconds."""
        now_s = self._monotonic_s()
        self._counted_s += (now_s - self._at_s) / self._slowed()
        self._at_s = now_s
        return self._counted_s
