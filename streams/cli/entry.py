"""The `shoal` console script: end silently on Ctrl-C during the slow imports.

Ctrl-C while Python still reads our modules ends the process with code 130 and no traceback. While
the interpreter itself starts, the parent process may block SIGINT (`make` does). A SIGINT from that
time then ends the process here.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Run `shoal`; returns the exit code."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    from streams.cli import main as command

    # An exception while an extension module initialises would crash the interpreter.
    interrupted = signal.default_int_handler
    return command.main(sys.argv[1:], lambda: signal.signal(signal.SIGINT, interrupted))


if __name__ == "__main__":
    sys.exit(main())
