"""The `shoal` console script: end silently on Ctrl-C during the slow imports.

Ctrl-C during the imports ends the process with code 130 and no traceback. The parent process may
block SIGINT while the interpreter starts (`make` does). This module unblocks SIGINT, and a SIGINT
that arrived in the meantime then ends the process. The module also disables garbage collection
until the imports are done.
"""

from __future__ import annotations

import gc
import os
import signal
import sys

from streams import compiled_code


def main() -> int:
    """Run `shoal`; returns the exit code."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    compiled_code.provide()
    # Imports make only objects that stay, and collections would take an eighth of their time.
    gc.disable()
    from streams.cli import main as command

    def imported() -> None:
        gc.freeze()
        gc.enable()
        # Not earlier: an exception during the start of an extension module would crash the
        # interpreter.
        signal.signal(signal.SIGINT, signal.default_int_handler)

    return command.main(sys.argv[1:], imported)


if __name__ == "__main__":
    sys.exit(main())
