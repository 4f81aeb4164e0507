"""`python -m streams.controller`: see `controller_process`."""

from __future__ import annotations

import os
import sys

from topics.edge.program import run_program

if __name__ == "__main__":
    code = run_program("streams.controller.controller_process")
    sys.stdout.flush()
    sys.stderr.flush()
    # Client threads may wait without a limit for an unreachable broker, so do not join them.
    # No write is lost: the next leader publishes the desired state again.
    os._exit(code)
