"""The clock of the batching machine: domain time without the times in which it stood.

A paused, sleeping or wedged engine makes no progress, so its machine's clock stands, while the time
of everybody else goes on. Reads the monotonic clock through the function it is given.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.time_base import TimeBase


class MachineClock:
    """now_s: a monotonic clock in real seconds. Times out are domain ms since the origin."""

    def __init__(self, time_base: TimeBase, now_s: Callable[[], float]) -> None:
        self._speed = time_base.speed
        self._origin_s = time_base.origin_mono_ns / 1e9
        self._now_s = now_s
        self._since_ms: float | None = None
        self._stood_ms = 0.0

    @property
    def stands(self) -> bool:
        """Whether the machine makes no progress."""
        return self._since_ms is not None

    def now_ms(self) -> float:
        """Domain time."""
        return (self._now_s() - self._origin_s) * 1e3 * self._speed

    def machine_ms(self) -> float:
        """The machine's time."""
        now_ms = self.now_ms() if self._since_ms is None else self._since_ms
        return now_ms - self._stood_ms

    def domain_ms(self, machine_ms: float) -> float:
        """When `machine_ms`, of the time since it stood last, is in domain time."""
        return machine_ms + self._stood_ms

    def real_s(self, machine_ms: float) -> float:
        """The same on the monotonic clock."""
        return self._origin_s + self.domain_ms(machine_ms) / 1e3 / self._speed

    def stand(self) -> None:
        """From now on the machine makes no progress."""
        if self._since_ms is None:
            self._since_ms = self.now_ms()

    def go(self) -> None:
        """It goes on where it stood."""
        if self._since_ms is not None:
            self._stood_ms += self.now_ms() - self._since_ms
            self._since_ms = None
