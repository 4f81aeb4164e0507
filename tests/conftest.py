"""Signals as a terminal's processes have them, whoever started the tests; no wall-clock deadlines
of properties, which a busy machine would miss; and logs that the next test can read, though
commands of `loadtests` silence them for the rest of their process.

A script's background job is started with SIGINT ignored, and what is ignored stays so in every
process it starts: Ctrl-C could then not be tried on any of them.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings


def pytest_configure() -> None:
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _logs_are_heard() -> Iterator[None]:
    yield
    logging.disable(logging.NOTSET)
