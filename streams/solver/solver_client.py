"""Planner client of the controller: sends requests; answers appear in a later observation.

Urgent requests are small, and a thread of the controller answers them. So a long full solve or a
restart of the solver process does not delay them. Full requests go to a separate process, one at a
time, each with a time limit. A solver process that does not answer is killed and restarted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.explain.reason_texts import text
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.planner import OPTIONS, answer_request
from autoscaler.planning.planner_messages import (
    Outcome,
    PlanAnswer,
    PlanRequest,
    Urgency,
    no_plan_answer,
)
from autoscaler.planning.strategies.registry import strategy_for
from streams.solver.solver_wire import decode_answer, encode_request
from topics.checks import InvalidValue
from topics.edge.supervision import supervision_fds
from topics.error_text import error_text
from topics.reason_codes import ReasonCode

log = logging.getLogger(__name__)

FULL_LIMIT_S = 60.0
URGENT_LIMIT_S = 10.0
"""Real seconds for one answer; for a full plan, they include the start of the process."""

_URGENT_S = 8.0  # part of URGENT_LIMIT_S for evaluation and search
_MOST_LINE_BYTES = 64 * 1024 * 1024

Plan = Callable[[PlanRequest, Cluster], PlanAnswer]
Solve = Callable[[PlanRequest, Cluster], Awaitable[PlanAnswer]]


def solver_argv() -> list[str]:
    """The command line of the solver process."""
    return [sys.executable, "-m", "streams.solver"]


def plan_here(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
    """Plan in this process. The search for an urgent plan ends in time, with the best plan until
    then."""
    options, began_s = OPTIONS, time.monotonic()
    if request.urgency is Urgency.URGENT:
        elapsed_s = partial(_since_s, began_s)
        options = replace(OPTIONS, time_limit_s=_URGENT_S, elapsed_s=elapsed_s)
    return answer_request(
        request, cluster, cluster_profile(cluster), strategy_for(cluster.policy), options
    )


def _since_s(began_s: float) -> float:
    return time.monotonic() - began_s


class Solver:
    """Runs the planner in another process. argv: command of the solver process. Run `run`
    concurrently with the ticks.

    news: set when a plan arrives. A failure does not set it, because an immediate retry would fail
    too. killed: number of times that the process or the thread was abandoned.
    """

    def __init__(
        self,
        argv: Sequence[str],
        plan: Plan = plan_here,
        full_limit_s: float = FULL_LIMIT_S,
        urgent_limit_s: float = URGENT_LIMIT_S,
    ) -> None:
        self._argv = tuple(argv)
        self._plan = plan
        self._limit_s = {Urgency.FULL: full_limit_s, Urgency.URGENT: urgent_limit_s}
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[Urgency, tuple[PlanRequest, Cluster]] = {}
        self._asked = {urgency: asyncio.Event() for urgency in Urgency}
        self._answers: list[PlanAnswer] = []
        self._threads = _threads()
        self.news = asyncio.Event()
        self.killed = 0

    def ask(self, request: PlanRequest, cluster: Cluster) -> None:
        """Send a request; returns at once. The request replaces a pending request of the same
        urgency.

        cluster: the current declared cluster; `request` holds the current prices.
        """
        given_up = self._waiting.pop(request.urgency, None)
        if given_up is not None:
            self._store(no_plan_answer(given_up[0], Reason(ReasonCode.SUPERSEDED)))
        self._waiting[request.urgency] = (request, cluster)
        self._asked[request.urgency].set()

    def take(self) -> tuple[PlanAnswer, ...]:
        """Answers that arrived since the last call."""
        found, self._answers = tuple(self._answers), []
        self.news.clear()
        return found

    async def run(self) -> None:
        """Send pending requests to the planner until cancelled; then end the process."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._lane(Urgency.URGENT, self._in_thread))
                # Imports take seconds, so start the process before the first request.
                await self._running()
                tasks.create_task(self._lane(Urgency.FULL, self._in_process))
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._kill()

    async def _lane(self, urgency: Urgency, solve: Solve) -> None:
        while True:
            await self._asked[urgency].wait()
            self._asked[urgency].clear()
            waiting = self._waiting.pop(urgency, None)
            if waiting is None:
                continue
            request, cluster = waiting
            self._store(await self._limited(urgency, request, cluster, solve))

    async def _limited(
        self,
        urgency: Urgency,
        request: PlanRequest,
        cluster: Cluster,
        solve: Solve,
    ) -> PlanAnswer:
        limit_s = self._limit_s[urgency]
        try:
            async with asyncio.timeout(limit_s):
                return await solve(request, cluster)
        except TimeoutError:
            why = Reason(ReasonCode.SOLVER_TIMEOUT, quantities=(limit_s,))
        except (OSError, EOFError) as error:
            named = error_text(error)
            why = Reason(ReasonCode.SOLVER_GONE, quoted=named)
        except (InvalidValue, ValueError, KeyError, TypeError) as error:
            # The answer is invalid JSON, too long or lacks a field, so the process is not usable.
            why = Reason(ReasonCode.SOLVER_GARBLED, quoted=str(error))
        log.warning("%s plan: %s", urgency, text(why))
        await self._start_over(urgency)
        return no_plan_answer(request, why)

    async def _start_over(self, urgency: Urgency) -> None:
        self.killed += 1
        if urgency is Urgency.FULL:
            await self._kill()
        else:  # A thread cannot be killed, so it is abandoned.
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._threads = _threads()

    async def _in_thread(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        loop = asyncio.get_running_loop()
        planning = loop.run_in_executor(self._threads, self._plan, request, cluster)
        try:
            return await planning
        except Exception as error:
            # As in the solver process, any failure is an answer, and instances stay unchanged.
            log.exception("urgent plan: unhandled error")
            named = f"{type(error).__name__}: {error}"
            return no_plan_answer(request, Reason(ReasonCode.SOLVER_ERROR, quoted=named))

    async def _in_process(self, request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        process = await self._running()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  pipes
        process.stdin.write(encode_request(request, cluster))
        await process.stdin.drain()
        while True:
            said = await process.stdout.readline()
            if not said:
                raise EOFError(f"exit code {await process.wait()}")
            found = decode_answer(said)
            if found.number == request.number:
                return found

    def _store(self, found: PlanAnswer) -> None:
        self._answers.append(found)
        if found.outcome is not Outcome.NONE:
            self.news.set()

    async def _running(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_MOST_LINE_BYTES,
                pass_fds=supervision_fds(),
                env=dict(os.environ),
            )
        return self._process

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="urgent-plan")
