"""Signals as a terminal's processes have them, whoever started the tests; and no wall-clock
deadlines of properties, which a busy machine would miss.

A script's background job is started with SIGINT ignored, and what is ignored stays so in every
process it starts: Ctrl-C could then not be tried on any of them.
"""

from __future__ import annotations

import signal

from hypothesis import settings


def pytest_configure() -> None:
    settings.register_profile("unhurried", deadline=None)
    settings.load_profile("unhurried")
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
