"""The `shoal` console script: what runs before the first import that takes time.

Ctrl-C while Python still reads our modules ends the process with code 130 and no traceback. Before
that, while the interpreter itself starts, whoever starts us may hold SIGINT back (`make` does):
what came then ends us here.
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

    # An exception in the middle of an extension module's start would crash the interpreter.
    interrupted = signal.default_int_handler
    return command.main(sys.argv[1:], lambda: signal.signal(signal.SIGINT, interrupted))


if __name__ == "__main__":
    sys.exit(main())
