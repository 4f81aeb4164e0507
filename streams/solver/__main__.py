"""`python -m streams.solver`: see `solver_process`."""

from __future__ import annotations

import sys

from topics.edge.program import run_program

if __name__ == "__main__":
    sys.exit(run_program("streams.solver.solver_process"))
