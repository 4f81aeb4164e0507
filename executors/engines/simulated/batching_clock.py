"""The clock of the batching machine: domain time minus the time during which the machine is
stopped. While an engine is paused, sleeping or wedged (hanging on purpose), it makes no progress,
so this clock stops although domain time continues.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.time_base import TimeBase


class MachineClock:
    """The machine's clock. now_s: a monotonic clock in real seconds. Results are domain ms since
    the origin."""

    def __init__(self, time_base: TimeBase, now_s: Callable[[], float]) -> None:
        self._speed = time_base.speed
        self._origin_s = time_base.origin_mono_ns / 1e9
        self._now_s = now_s
        self._stopped_at_ms: float | None = None
        self._stopped_ms = 0.0

    @property
    def stopped(self) -> bool:
        """Whether the machine is stopped."""
        return self._stopped_at_ms is not None

    def now_ms(self) -> float:
        """Domain time in ms since the origin."""
        return (self._now_s() - self._origin_s) * 1e3 * self._speed

    def machine_ms(self) -> float:
        """The machine's time in ms since the origin."""
        now_ms = self.now_ms() if self._stopped_at_ms is None else self._stopped_at_ms
        return now_ms - self._stopped_ms

    def domain_ms(self, machine_ms: float) -> float:
        """The domain time at machine time `machine_ms`, which must be later than the last stop."""
        return machine_ms + self._stopped_ms

    def real_s(self, machine_ms: float) -> float:
        """The monotonic clock's time, in real seconds, at machine time `machine_ms`."""
        return self._origin_s + self.domain_ms(machine_ms) / 1e3 / self._speed

    def stop(self) -> None:
        """Stop the machine's clock."""
        if self._stopped_at_ms is None:
            self._stopped_at_ms = self.now_ms()

    def resume(self) -> None:
        """Continue the machine's clock from where it stopped."""
        if self._stopped_at_ms is not None:
            self._stopped_ms += self.now_ms() - self._stopped_at_ms
            self._stopped_at_ms = None
