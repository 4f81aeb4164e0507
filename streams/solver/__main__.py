"""`python -m streams.solver`: answers plan requests on stdin with lines on stdout.

Owns the loop only. It may be killed at any moment; whoever asked starts another.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from dataclasses import replace

from autoscaler.performance.known import profile_of
from autoscaler.planning.answer import OPTIONS, answer
from autoscaler.planning.request import unanswered
from autoscaler.planning.strategies.table import strategy_for
from streams.solver.wire import asked, reply
from streams.supervision import end_with_supervisor

_PR_SET_PDEATHSIG = 1

SEARCH_S = 6.0
"""Real seconds that one search may take: what it has by then is the plan, and its gap is said."""


class _Stopwatch:
    """Seconds since it was first asked. The search asks first: valuing candidates, which is slow
    for a process that has just started, does not count."""

    def __init__(self) -> None:
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = time.monotonic()
        self._began_s = now_s if self._began_s is None else self._began_s
        return now_s - self._began_s


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
                profile, planner = profile_of(cluster), strategy_for(cluster.policy)
                options = replace(OPTIONS, time_limit_s=SEARCH_S, elapsed_s=_Stopwatch())
                found = answer(request, cluster, profile, planner, options)
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
