"""`python -m executors.engines.simulated`: see `engine_process`."""

from __future__ import annotations

import sys

from topics.edge.program import run_program

if __name__ == "__main__":
    sys.exit(run_program("executors.engines.simulated.engine_process"))
