"""`python -m streams.cli.start_part MODULE OPTIONS`: run a part; Ctrl-C shows no traceback.

A part imports modules for seconds before it installs its own signal handlers. Until then SIGINT
ends this process silently. This module imports only the standard library.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Run the module that the first argument names as `__main__`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = sys.argv[1]
    del sys.argv[:1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
