"""Solver process: `python -m streams.solver` reads plan requests from stdin and writes answers to
stdout, one per line.

It may be killed at any moment; the controller then starts another solver process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import PLAN_CACHES
from autoscaler.optimizer.decomposition.compile_kernels import compile_kernels
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planner import OPTIONS, answer_request
from autoscaler.planning.planner_messages import Urgency, no_plan_answer
from autoscaler.planning.strategies.registry import strategy_for
from streams.garbage_collection import collect_all
from streams.solver.solver_wire import decode_request, encode_answer
from topics.edge.supervision import end_with_supervisor
from topics.reason_codes import ReasonCode

_PR_SET_PDEATHSIG = 1

ANSWER_S = 4.5
"""Real seconds for one answer. The search ends then with its best plan and the gap of that plan."""

_SEARCH_S = 3.0
"""Minimum real seconds for the search.

It applies if the evaluation of candidates takes long, as in a new process or on a loaded machine.
"""


class Stopwatch:
    """A clock in s that starts when it is created.

    The search reads it first. The time before that counts for at most `ANSWER_S - _SEARCH_S`.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._made_s = clock_s()
        self._began_s: float | None = None

    def __call__(self) -> float:
        now_s = self._clock_s()
        if self._began_s is None:
            self._began_s = max(self._made_s, now_s - (ANSWER_S - _SEARCH_S))
        return now_s - self._began_s


def main() -> int:
    """Answer requests until stdin ends."""
    end_with_supervisor()
    _end_with_parent()
    # Serving has priority on a shared machine, so the solver runs at low priority.
    os.nice(5)
    # Solver libraries print to stdout, so answers use another descriptor.
    with os.fdopen(os.dup(1), "wb", buffering=0) as out:
        os.dup2(2, 1)
        compile_kernels()  # The time limit of the first answer must not include this.
        for line in sys.stdin.buffer:
            elapsed_s = Stopwatch()
            request, cluster = decode_request(line)
            if request.urgency is Urgency.FULL:
                PLAN_CACHES.next_period()
                collect_all()
            try:
                profile, planner = cluster_profile(cluster), strategy_for(cluster.policy)
                options = replace(OPTIONS, time_limit_s=ANSWER_S, elapsed_s=elapsed_s)
                found = answer_request(request, cluster, profile, planner, options)
            except Exception as error:
                # Report any failure as an answer, so that the last valid plan stays in force.
                named = f"{type(error).__name__}: {error}"
                found = no_plan_answer(request, Reason(ReasonCode.SOLVER_ERROR, quoted=named))
            out.write(encode_answer(found))
    return 0


def _end_with_parent() -> None:
    """End this process when the controller ends, because then no process reads the answers."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
