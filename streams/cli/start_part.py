"""`python -m streams.cli.start_part MODULE OPTIONS`: run a part; Ctrl-C shows no traceback.

Until the part has taken over its signals, which it does after seconds of imports, SIGINT ends this
process silently. Imports nothing but the standard library.
"""

from __future__ import annotations

import runpy
import signal
import sys


def main() -> None:
    """Become the module that the first argument names."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = sys.argv[1]
    del sys.argv[:1]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
