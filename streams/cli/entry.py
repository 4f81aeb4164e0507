"""The `shoal` console script: end silently on Ctrl-C during the slow imports.

Ctrl-C during the imports ends the process with code 130 and no traceback. The parent process may
block SIGINT while the interpreter starts (`make` does). This module unblocks SIGINT, and a SIGINT
that arrived in the meantime then ends the process.
"""

from __future__ import annotations

import os
import signal
import sys

from streams import compiled_code


def main() -> int:
    """Run `shoal`; returns the exit code."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    compiled_code.provide()
    from streams.cli import main as command

    # Do not raise here: an exception during the start of an extension module would crash the
    # interpreter.
    interrupted = signal.default_int_handler
    return command.main(sys.argv[1:], lambda: signal.signal(signal.SIGINT, interrupted))


if __name__ == "__main__":
    sys.exit(main())
