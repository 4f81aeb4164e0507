"""Settings for all tests: signals, property tests and logs.

Processes get the signals of a terminal's processes, however the tests were started. A background
job of a script starts with SIGINT ignored, and its child processes inherit that. Ctrl-C could not
be tested on them.

Property tests have no wall-clock deadline, because a busy machine would miss it. They use the same
examples each time, so a commit passes or fails because of its own changes. Therefore Hypothesis
does not draw constants of the modules that happen to be imported, which also saves parsing them.
`make test ARGS="--hypothesis-seed=N tests/property"` tries other examples.

Commands of `loadtests` silence logs for the rest of their process, so logs are enabled again for
each test.
"""

from __future__ import annotations

import gc
import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from streams.garbage_collection import freeze_objects


def pytest_configure(config: pytest.Config) -> None:
    same = config.getoption("--hypothesis-seed") is None
    settings.register_profile("unhurried", deadline=None, derandomize=same)
    settings.load_profile("unhurried")
    providers.HypothesisProvider._local_constants = providers.Constants()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests without collecting garbage, now and later: tests and modules stay until the
    end. Afterwards garbage is collected as rarely as in the product's processes."""
    gc.disable()
    try:
        return (yield)
    finally:
        freeze_objects()
        gc.enable()


@pytest.fixture(autouse=True)
def _logs_are_heard() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)
