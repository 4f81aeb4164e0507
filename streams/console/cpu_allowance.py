"""Limits the share of a core that recurring work may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class CpuAllowance:
    """After work that took `c` CPU seconds, `allowed` is False for `c / share` real seconds.

    cpu_s: CPU time of this thread. now_s: monotonic time.
    """

    def __init__(
        self, share: float, cpu_s: Callable[[], float], now_s: Callable[[], float]
    ) -> None:
        self._share = share
        self._cpu_s = cpu_s
        self._now_s = now_s
        self._until_s = 0.0

    @property
    def allowed(self) -> bool:
        """Whether the work may run now."""
        return self._now_s() >= self._until_s

    @contextmanager
    def work(self) -> Iterator[None]:
        """Context manager that measures the CPU time of the work in its block."""
        began_s, began_cpu_s = self._now_s(), self._cpu_s()
        try:
            yield
        finally:
            self._until_s = began_s + (self._cpu_s() - began_cpu_s) / self._share
