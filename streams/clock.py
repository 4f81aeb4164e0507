"""Clocks of the control plane, and the conversion from broker time to domain time.

All clock reads are here. Domain time comes from this machine's monotonic clock and the shared time
base. `topics.broker_clock` estimates the broker's time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.time_base import TimeBase

Times: TypeAlias = NDArray[np.int64]


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

    def of_log(self) -> Callable[[Times], Times]:
        """Conversion of log times (`of_append`) that were read together to event times in domain
        ms, which are never in the future."""
        now_ms = self.now_ms()
        log_ms = of_append(self.time_base, self.broker_ms())

        def events_ms(times_ms: Times) -> Times:
            return now_ms - np.maximum(0, log_ms - times_ms)

        return events_ms


def of_append(time_base: TimeBase, append_ms: int) -> int:
    """Log time: an append time of the broker's clock in ms as domain time, if that clock agreed
    with the origin of `time_base`. At speed 1 it is the append time. Every process of a run
    computes equal values."""
    origin_ms = time_base.origin_ms
    return origin_ms + math.floor((append_ms - origin_ms) * time_base.speed)
