"""Clocks of the control plane, and the conversion from broker time to domain time.

All clock reads are here. Domain time comes from this machine's monotonic clock and the shared time
base. `topics.broker_clock` estimates the broker's time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.time_base import TimeBase

Times: TypeAlias = NDArray[np.int64]
EventsMs: TypeAlias = Callable[[Times, Times], Times]
"""Conversion: (append times in ms of the broker's clock, ages in ms at the append) to event times
in domain ms.
"""


def wall_ms() -> int:
    """This machine's wall clock in ms, used until the broker's time is known."""
    return time.time_ns() // 1_000_000


def real_time() -> TimeBase:
    """Time base whose domain time is this machine's wall time, at speed 1."""
    return TimeBase(1.0, wall_ms(), time.monotonic_ns())


@dataclass(frozen=True, slots=True)
class Clock:
    """Domain time. mono_ns: reads the monotonic clock; replaced in tests. broker_ms: returns the
    broker's current time."""

    time_base: TimeBase
    mono_ns: Callable[[], int] = time.monotonic_ns
    broker_ms: Callable[[], int] = wall_ms

    def now_ms(self) -> int:
        """Domain time now, in ms since the epoch."""
        return self.time_base.now_ms(self.mono_ns())

    def now_s(self) -> float:
        """Monotonic real seconds, for leases and pauses."""
        return self.mono_ns() / 1e9

    def real_s_until(self, domain_ms: int) -> float:
        """Real seconds until domain time is `domain_ms`; 0 if it is in the past."""
        return max(0.0, (self.time_base.mono_ns_at(domain_ms) - self.mono_ns()) / 1e9)

    def real_age_s(self, append_ms: int) -> float:
        """Real seconds since the broker appended a record at `append_ms` of its clock."""
        return max(0, self.broker_ms() - append_ms) / 1000.0

    def event_ms(self, append_ms: int) -> int:
        """Domain time at which the broker appended a record at `append_ms` of its clock.

        The result is never in the future, even if the broker's clock was set back.
        """
        past_ms = max(0, self.broker_ms() - append_ms)
        return self.now_ms() - int(past_ms * self.time_base.speed)

    def events(self) -> EventsMs:
        """`event_ms` for many records that were read together. Their ages are subtracted too."""
        now_ms, broker_ms, speed = self.now_ms(), self.broker_ms(), self.time_base.speed

        def events_ms(append_ms: Times, age_ms: Times) -> Times:
            past_ms = np.maximum(0, broker_ms - append_ms)
            found: Times = now_ms - (past_ms * speed).astype(np.int64) - age_ms
            return found

        return events_ms
