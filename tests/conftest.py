"""Signals as a terminal's processes have them, whoever started the tests; properties without
wall-clock deadlines, which a busy machine would miss, and on the same examples each time, so that
a commit passes or fails for what it changed; and logs that the next test can read, though commands
of `loadtests` silence them for the rest of their process.

`make test ARGS="--hypothesis-seed=N tests/property"` looks at other examples.

A script's background job is started with SIGINT ignored, and what is ignored stays so in every
process it starts: Ctrl-C could then not be tried on any of them.
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
