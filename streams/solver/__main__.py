"""`python -m streams.solver`: answers plan requests on stdin with lines on stdout.

Owns the loop only. It may be killed at any moment; whoever asked starts another.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from autoscaler.performance.measured import profile_of
from autoscaler.planning.answer import answer
from autoscaler.planning.request import unanswered
from autoscaler.planning.strategies.table import strategy_for
from streams.solver.wire import asked, reply
from streams.supervision import end_with_supervisor

_PR_SET_PDEATHSIG = 1


def main() -> int:
    """Answer until stdin ends."""
    end_with_supervisor()
    _end_with_parent()
    # Serving comes first on a shared machine: what is solved here can wait a little.
    os.nice(5)
    # Solvers print; answers get a descriptor that nobody else writes to.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        for line in sys.stdin.buffer:
            request, cluster = asked(line)
            try:
                found = answer(request, cluster, profile_of(cluster), strategy_for(cluster.policy))
            except Exception as error:
                # Any failure is an answer: the last good plan stands, and the reason is said.
                found = unanswered(request, f"{type(error).__name__}: {error}")
            out.write(reply(found))
    return 0


def _end_with_parent() -> None:
    """Nobody reads an answer once the controller is gone, however it went."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(main())
