"""The broker's clock, estimated from the append times of records that a process itself sent. Pure.

Wall clocks are not trusted, not even the broker's: callers use only differences between the
broker's append times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_SAMPLES = 8


@dataclass(slots=True)
class BrokerClock:
    """An estimate of the broker's current time.

    mono_ns: reads the monotonic clock. fallback_ms: the time before the first sample.

    A record sent at s and acknowledged at a (monotonic ms) was appended in between, so the offset
    of the broker's clock to the monotonic clock is between append - a and append - s. Of the last 8
    samples that agree with the newest one, the estimate uses the narrowest range. Samples that
    disagree with the newest sample are dropped, because the broker's clock was set in between.
    """

    mono_ns: Callable[[], int]
    fallback_ms: Callable[[], int]
    _ranges: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    _ahead_ms: float | None = None

    def add_sample(self, append_ms: int, sent_ns: int) -> None:
        """Add a sample: a record that has just been acknowledged. append_ms: its append time.
        sent_ns: monotonic time at which it was sent."""
        newest = append_ms - self.mono_ns() / 1e6, append_ms + 1 - sent_ns / 1e6
        self._ranges.append(newest)
        agreeing = [r for r in self._ranges if r[0] <= newest[1] and newest[0] <= r[1]]
        if len(agreeing) < len(self._ranges):
            self._ranges = deque(agreeing, maxlen=_SAMPLES)
        low, high = min(agreeing, key=lambda r: r[1] - r[0])
        self._ahead_ms = (low + high) / 2.0

    def now_ms(self) -> int:
        """The broker's time now; `fallback_ms` before the first sample."""
        if self._ahead_ms is None:
            return self.fallback_ms()
        return int(self.mono_ns() / 1e6 + self._ahead_ms)
