"""Signals as a terminal's processes have them, whoever started the tests.

A script's background job is started with SIGINT ignored, and what is ignored stays so in every
process it starts: Ctrl-C could then not be tried on any of them.
"""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
