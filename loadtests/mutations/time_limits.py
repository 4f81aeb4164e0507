"""Ends a test process in which one test takes far longer than usual."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping

import pytest

_SLOWER = 10  # times the usual time
_PATIENCE_S = 30.0  # more, in real s: a busy machine may delay a test
_PATIENCE_CPU_S = 3.0  # more, in s of the processor, which no other process can take


Seconds = tuple[float, float]
"""The time that a test takes: real s, and s of the processor."""


class TimeLimits:
    """A pytest plugin for a process of its own. usual: by test; others have no limit."""

    def __init__(self, usual: Mapping[str, Seconds]) -> None:
        self._usual = usual

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """A signal that nothing handles ends the process after the limit."""
        if item.nodeid in self._usual:
            real_s, cpu_s = self._usual[item.nodeid]
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S + _SLOWER * real_s)
            signal.setitimer(signal.ITIMER_PROF, _PATIENCE_CPU_S + _SLOWER * cpu_s)
        result = yield
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        return result
