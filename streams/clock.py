"""The one place where the control plane reads clocks, and the way from broker time to domain time.

Owns two readings: this machine's monotonic clock (domain time comes from it through the shared
time base) and its wall clock, which is only ever compared with the broker's append times.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from topics.timebase import TimeBase


@dataclass(frozen=True, slots=True)
class Clock:
    """Domain time. mono_ns, wall_ms: the readings, replaced in tests."""

    time_base: TimeBase
    mono_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        """Domain time now, in ms since the epoch."""
        return self.time_base.now_ms(self.mono_ns())

    def real_s_until(self, domain_ms: int) -> float:
        """Real seconds until domain time is `domain_ms`; 0 if it was already."""
        return max(0.0, (self.time_base.mono_ns_at(domain_ms) - self.mono_ns()) / 1e9)

    def event_ms(self, append_wall_ms: int, age_ms: int = 0) -> int:
        """Domain time of what was `age_ms` old when the broker appended it at `append_wall_ms`.

        A broker whose clock is ahead of ours does not put events into the future.
        """
        behind_ms = max(0, self.wall_ms() - append_wall_ms)
        return self.now_ms() - int(behind_ms * self.time_base.speed) - age_ms
