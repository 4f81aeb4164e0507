"""The broker's clock as a process knows it, from append times of its own records. Pure.

Nobody's wall clock is trusted, the broker's included: only differences of its append times are
used, against what it said when it last took a record of ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_SAMPLES = 8


@dataclass(slots=True)
class BrokerClock:
    """The broker's time as of now, from append times that it gave to records of ours.

    A record sent at s and acknowledged at a (monotonic ms) was appended in between, so the broker
    is ahead of our monotonic clock by append - a to append - s. Of the last 8 samples the narrowest
    counts that agrees with the newest; where they disagree the broker's clock was set, and the
    newest counts.
    """

    mono_ns: Callable[[], int]
    until_heard_ms: Callable[[], int]
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
        """Its time now; `until_heard_ms` until it has said anything."""
        if self._ahead_ms is None:
            return self.until_heard_ms()
        return int(self.mono_ns() / 1e6 + self._ahead_ms)
