"""Settings for all tests: signals, property tests and logs.

Processes get the signals that a terminal's processes have, however the tests were started.
Properties have no wall-clock deadline, which a busy machine would miss, and use the same examples
each time, so a commit passes or fails because of its own changes. The next test can read logs,
although commands of `loadtests` silence them for the rest of their process.

`make test ARGS="--hypothesis-seed=N tests/property"` tries other examples.

A script's background job starts with SIGINT ignored, and every process that it starts inherits
this: Ctrl-C could not be tested on any of them.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings


def pytest_configure(config: pytest.Config) -> None:
    same = config.getoption("--hypothesis-seed") is None
    settings.register_profile("unhurried", deadline=None, derandomize=same)
    settings.load_profile("unhurried")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_are_heard() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)
