"""Which lines of some files each test executes."""

from __future__ import annotations

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from loadtests.mutations.time_limits import Seconds

Lines = set[tuple[str, int]]


class LineCoverage:
    """A pytest plugin that notes lines and seconds by test. Lines of fixtures count for every test
    of their file, because tests may share a fixture.
    """

    def __init__(self, root: Path, files: set[str]) -> None:
        self._files = {str(root / file): file for file in files}
        self._lines: dict[str, Lines] = defaultdict(set)
        self._current: Lines = set()
        self._traced: dict[CodeType, bool] = {}
        self.seconds: dict[str, Seconds] = {}

    def install(self) -> None:
        """Begin to trace this thread and those that start later."""
        threading.settrace(self._call)
        sys.settrace(self._call)

    def tests(self) -> dict[str, Lines]:
        """The lines of each test with those of the fixtures of its file."""
        return {
            test: self._lines[test] | self._lines[test.partition("::")[0]] for test in self.seconds
        }

    def _call(self, frame: FrameType, _event: str, _argument: Any) -> Any:
        code = frame.f_code
        is_traced = self._traced.get(code)
        if is_traced is None:
            is_traced = self._traced[code] = code.co_filename in self._files
        if not is_traced:
            return None
        file = self._files[code.co_filename]

        def line(frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "line":
                self._current.add((file, frame.f_lineno))
            return line

        self._current.add((file, frame.f_lineno))
        return line

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """The seconds of a test with its fixtures, which come first."""
        self._current = self._lines[item.nodeid.partition("::")[0]]
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        result = yield
        cpu_s = time.process_time() - began_cpu_s
        self.seconds[item.nodeid] = time.perf_counter() - began_s, cpu_s
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        """The lines of the test itself."""
        self._current = self._lines[item.nodeid]
        return (yield)
