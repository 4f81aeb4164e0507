"""The one place where the control plane reads clocks, and the way from broker time to domain time.

Owns this machine's monotonic clock (domain time comes from it through the shared time base) and
what is known of the broker's clock. Nobody's wall clock is trusted, the broker's included: only
differences of its append times are used, against what it said when it last took a record of ours.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from topics.timebase import TimeBase

_SAMPLES = 8


@dataclass(slots=True)
class BrokerClock:
    """The broker's time as of now, from append times that it gave to records of ours.

    A record sent at s and acknowledged at a (monotonic ms) was appended in between, so the broker
    is ahead of our monotonic clock by append - a to append - s. Of the last 8 samples the narrowest
    counts that agrees with the newest; where they disagree the broker's clock was set, and the
    newest counts.
    """

    mono_ns: Callable[[], int] = time.monotonic_ns
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    _ranges: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    _ahead_ms: float | None = None

    def heard(self, append_ms: int, sent_ns: int) -> None:
        """A record sent at the monotonic reading `sent_ns`, just acknowledged, has `append_ms`."""
        newest = append_ms - self.mono_ns() / 1e6, append_ms + 1 - sent_ns / 1e6
        self._ranges.append(newest)
        agreeing = [r for r in self._ranges if r[0] <= newest[1] and newest[0] <= r[1]]
        if len(agreeing) < len(self._ranges):
            self._ranges = deque(agreeing, maxlen=_SAMPLES)
        low, high = min(agreeing, key=lambda r: r[1] - r[0])
        self._ahead_ms = (low + high) / 2.0

    def now_ms(self) -> int:
        """Its time now; this machine's until it has said anything."""
        if self._ahead_ms is None:
            return self.wall_ms()
        return int(self.mono_ns() / 1e6 + self._ahead_ms)


@dataclass(frozen=True, slots=True)
class Clock:
    """Domain time. mono_ns: the reading, replaced in tests. broker_ms: the broker's time now."""

    time_base: TimeBase
    mono_ns: Callable[[], int] = time.monotonic_ns
    broker_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000

    def now_ms(self) -> int:
        """Domain time now, in ms since the epoch."""
        return self.time_base.now_ms(self.mono_ns())

    def now_s(self) -> float:
        """Monotonic real seconds, for leases and pauses."""
        return self.mono_ns() / 1e9

    def real_s_until(self, domain_ms: int) -> float:
        """Real seconds until domain time is `domain_ms`; 0 if it was already."""
        return max(0.0, (self.time_base.mono_ns_at(domain_ms) - self.mono_ns()) / 1e9)

    def real_age_s(self, append_ms: int) -> float:
        """Real seconds since the broker appended a record at `append_ms` of its clock."""
        return max(0, self.broker_ms() - append_ms) / 1000.0

    def event_ms(self, append_ms: int, age_ms: int = 0) -> int:
        """Domain time of what was `age_ms` old when the broker appended it at `append_ms`.

        A broker whose clock was set back does not put events into the future.
        """
        behind_ms = max(0, self.broker_ms() - append_ms)
        return self.now_ms() - int(behind_ms * self.time_base.speed) - age_ms
