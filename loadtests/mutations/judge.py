"""A pytest plugin that runs the tests once for each change, in forks of one process that has
imported and collected everything."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, TypeVar

import pytest

from loadtests.mutations.line_coverage import LineCoverage, Lines
from loadtests.mutations.mutants import Mutant
from loadtests.mutations.time_limits import Seconds, TimeLimits

PACKAGES = ("topics", "autoscaler", "streams", "executors", "loadtests", "tests", "deploy")
OPTIONS = ("-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout", "0")
_LONGEST_S = 3600.0  # of a run in which each test stays within its time limit
_T = TypeVar("_T")


@dataclass(frozen=True)
class _Fault:
    """An exception of a fork, as text."""

    text: str


class Judge:
    """Runs the tests without a change, then those that execute its statement for each of
    `mutants`. survived: called with each survivor and the number of its tests. failed: the tests
    that fail without a change.
    """

    def __init__(
        self, root: Path, mutants: Sequence[Mutant], survived: Callable[[Mutant, int], None]
    ) -> None:
        self._root, self._mutants, self._survived = root, mutants, survived
        self.failed: list[str] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Replaces the loop over all tests."""
        if session.testsfailed or not session.items:
            self.failed.append("the tests cannot be collected")
            return True
        lines, seconds, self.failed = self._baseline(session)
        if self.failed:
            return True
        files = {test: {file for file, _ in places} for test, places in lines.items()}
        quick_first = sorted(session.items, key=lambda item: seconds[item.nodeid][1])
        for mutant in self._mutants:
            if mutant.function is None:  # any test may notice it, those of its file most likely
                tests = sorted(quick_first, key=lambda item: mutant.file not in files[item.nodeid])
            else:
                places = {(mutant.file, line) for line in mutant.lines}
                tests = [item for item in quick_first if places & lines[item.nodeid]]
            if not tests or self._passes(session, mutant, tests, TimeLimits(seconds)):
                self._survived(mutant, len(tests))
        return True

    def _baseline(
        self, session: pytest.Session
    ) -> tuple[dict[str, Lines], dict[str, Seconds], list[str]]:
        def run() -> tuple[dict[str, Lines], dict[str, Seconds], list[str]]:
            coverage = LineCoverage(self._root, {mutant.file for mutant in self._mutants})
            session.config.pluginmanager.register(coverage)
            coverage.install()
            failed = _run(session, session.items, stop=False)
            sys.settrace(None)
            return coverage.tests(), coverage.seconds, failed

        return forked(run, _LONGEST_S) or ({}, {}, ["the tests ended their process"])

    def _passes(
        self,
        session: pytest.Session,
        mutant: Mutant,
        tests: list[pytest.Item],
        limits: TimeLimits,
    ) -> bool:
        """Whether `tests` pass with `mutant`. A run that hangs has noticed the change. Processes
        that a test starts read the change from the file."""
        file = self._root / mutant.file
        original = file.read_bytes()
        changed = mutant.source(original)

        def run() -> bool:
            if mutant.function is not None:
                session.config.pluginmanager.register(limits)
                _replace_code(str(file), mutant.function, compile(changed, file, "exec"))
                return not _run(session, tests, stop=True)
            forget_packages()
            names = [item.nodeid for item in tests]
            return pytest.main([*OPTIONS, "-x", *names], plugins=[limits]) == 0

        for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
            compiled.unlink()  # it would be read if the size and the second are the same
        try:
            file.write_bytes(changed)
            return forked(run, _LONGEST_S) is True
        finally:
            file.write_bytes(original)


def forget_packages() -> None:
    """Let the next import read our packages again."""
    for name in [name for name in sys.modules if name.split(".")[0] in PACKAGES]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _run(session: pytest.Session, items: Sequence[pytest.Item], stop: bool) -> list[str]:
    """The tests of `items` that fail; with `stop`, the first one."""
    failed = []
    for item, following in zip(items, [*items[1:], None], strict=True):
        before = session.testsfailed
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed > before:
            failed.append(item.nodeid)
            if stop:
                break
    return failed


def _replace_code(file: str, function: tuple[str, int], module: CodeType) -> None:
    """Give the function the code that it has in `module`."""

    def codes(code: CodeType) -> list[CodeType]:
        inner = [one for one in code.co_consts if isinstance(one, CodeType)]
        return [code, *(found for one in inner for found in codes(one))]

    (changed,) = (
        code for code in codes(module) if (code.co_qualname, code.co_firstlineno) == function
    )
    gc.unfreeze()  # Frozen functions would not be among the objects.
    for one in gc.get_objects():
        if type(one) is FunctionType:  # `isinstance` fails for proxies of objects that are gone
            code = one.__code__
            if (code.co_qualname, code.co_firstlineno) == function and code.co_filename == file:
                one.__code__ = changed


def forked(run: Callable[[], _T], limit_s: float) -> _T | None:
    """The value of `run` in a fork; None if the fork ended or took more than `limit_s`.
    RuntimeError: `run` raised an exception."""
    with tempfile.TemporaryFile() as answer:
        child = os.fork()
        if child == 0:
            os.setsid()
            with contextlib.suppress(BaseException):
                try:
                    found: object = run()
                except Exception as error:
                    found = _Fault(repr(error))
                answer.write(pickle.dumps(found))
                answer.flush()
            os._exit(0)
        deadline = time.monotonic() + limit_s
        try:
            while os.waitpid(child, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.005)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # with the processes that a test has left behind
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
        answer.seek(0)
        data = answer.read()
        value: Any = pickle.loads(data) if data else None  # noqa: S301
        if isinstance(value, _Fault):
            raise RuntimeError(value.text)
        return value  # type: ignore[no-any-return]
