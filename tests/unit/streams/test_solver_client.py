"""The solver process: its pipe keeps values unchanged, and a hanging planner delays others only
briefly.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.planning.planner_messages import (
    Outcome,
    PlanAnswer,
    PlanRequest,
    Urgency,
    no_plan_answer,
)
from autoscaler.planning.planning_problem import PlanOptions
from streams.solver import solver_client
from streams.solver.solver_client import Solver, plan_here, solver_argv
from streams.solver.solver_process import ANSWER_S, Stopwatch
from streams.solver.solver_wire import decode_answer, decode_request, encode_answer, encode_request
from tests.hang_limit import HANG_S
from tests.unit.streams.test_tick_loop import CLUSTER
from topics.reason_codes import ReasonCode

POOL = CLUSTER.pools[0].id
FULL = PlanRequest(
    number=4,
    urgency=Urgency.FULL,
    at_ms=1_700_000_000_000,
    demands=(Demand("tiny", 1.5, Lengths.expected(512.0, 128.0), 1.75),),
    fleet=((f"tiny:a1@{POOL}", 1),),
    rented_nodes=((POOL, 1),),
    unusable_nodes=((POOL, 0),),
    obtainable=((POOL, 1),),
    prices_usd_per_h=((POOL, 0.1 + 0.2),),
    scope=("tiny",),
)
URGENT = replace(FULL, number=5, urgency=Urgency.URGENT)
HANGS = "import time; time.sleep(60)"
FAILS = {
    "hangs": (HANGS, ReasonCode.SOLVER_TIMEOUT),
    "ends": ("import sys; sys.stdin.readline()", ReasonCode.SOLVER_GONE),
    "does not start": ("raise SystemExit(3)", ReasonCode.SOLVER_GONE),
    "no JSON": ("print('what', flush=True); " + HANGS, ReasonCode.SOLVER_GARBLED),
    "fields missing": ("print('{}', flush=True); " + HANGS, ReasonCode.SOLVER_GARBLED),
    "no mapping": ("print('[1]', flush=True); " + HANGS, ReasonCode.SOLVER_GARBLED),
    "wrong type": (
        'print(\'{"number": "4", "urgency": "full", "outcome": "planned"}\', flush=True); ' + HANGS,
        ReasonCode.SOLVER_GARBLED,
    ),
}
Start = Callable[[Solver], Solver]


def quick(request: PlanRequest, _cluster: Cluster) -> PlanAnswer:
    """A planner that answers at once."""
    return PlanAnswer(request.number, request.urgency, Outcome.PLANNED, request.scope)


@pytest.fixture
async def started() -> AsyncIterator[Start]:
    tasks: list[asyncio.Task[None]] = []

    def start(solver: Solver) -> Solver:
        tasks.append(asyncio.create_task(solver.run()))
        return solver

    yield start
    for task in tasks:
        assert not task.done(), "the solver's loop must outlive every failure"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def hang() -> Iterator[threading.Event]:
    """An event for which planners wait. It is set at the end, so no thread outlives its test."""
    event = threading.Event()
    yield event
    event.set()


async def answers(solver: Solver, number: int = 1) -> tuple[PlanAnswer, ...]:
    """The next `number` answers of the solver."""
    found: tuple[PlanAnswer, ...] = ()
    async with asyncio.timeout(HANG_S):
        while len(found) < number:
            found += solver.take()
            await asyncio.sleep(0.01)  # Real processes give no event for a failed answer.
    return found


@pytest.mark.parametrize("request_", [FULL, URGENT], ids=["full", "urgent"])
def test_a_request_passes_the_pipe_unchanged(request_: PlanRequest) -> None:
    """It has the present declaration of the cluster and is equal in every field."""
    assert decode_request(encode_request(request_, CLUSTER)) == (request_, CLUSTER)


def test_an_urgent_solve_ends_before_its_request_is_abandoned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[PlanOptions] = []

    def looked(*asked: object) -> PlanAnswer:
        limits.append(asked[-1])  # type: ignore[arg-type]
        return no_plan_answer(URGENT, Reason(ReasonCode.NO_PLAN))

    monkeypatch.setattr(solver_client, "answer_request", looked)
    plan_here(URGENT, CLUSTER)
    assert 0.0 < limits[0].left_s() < solver_client.URGENT_LIMIT_S


def test_answers_pass_the_pipe_unchanged() -> None:
    """Answers are plans with every combo, and failures with their reason."""
    planned = plan_here(FULL, CLUSTER)
    assert planned.outcome is Outcome.PLANNED
    assert planned.counts, "an empty plan would prove nothing"
    assert planned.combos
    assert decode_answer(encode_answer(planned)) == planned
    failed_plan = no_plan_answer(URGENT, Reason(ReasonCode.NO_PLAN))
    assert decode_answer(encode_answer(failed_plan)) == failed_plan


async def test_a_new_process_answers_after_the_previous_one_ended(
    started: Start, tmp_path: Path
) -> None:
    """The answer equals a plan that the test computes itself."""
    flag = tmp_path / "died"
    script = (
        "import pathlib, runpy, sys\n"
        f"flag = pathlib.Path({str(flag)!r})\n"
        "if not flag.exists():\n"
        "    flag.touch()\n"
        "    sys.exit(7)\n"
        "runpy.run_module('streams.solver', run_name='__main__')\n"
    )
    solver = started(Solver([sys.executable, "-c", script]))
    solver.ask(FULL, CLUSTER)
    (lost,) = await answers(solver)
    assert lost.outcome is Outcome.NONE
    solver.ask(replace(FULL, number=9), CLUSTER)
    (found,) = await answers(solver)
    assert found == plan_here(replace(FULL, number=9), CLUSTER)


def test_the_controller_starts_the_same_solver_module() -> None:
    """It is the module of the test above."""
    assert solver_argv() == [sys.executable, "-m", "streams.solver"]


@pytest.mark.parametrize("case", FAILS)
async def test_a_failed_process_gives_an_answer_with_its_reason(started: Start, case: str) -> None:
    """The answer has no plan, so no caller waits in vain."""
    script, code = FAILS[case]
    solver = started(Solver([sys.executable, "-c", script], full_limit_s=1.5))
    solver.ask(FULL, CLUSTER)
    (found,) = await answers(solver)
    assert (found.number, found.urgency, found.outcome) == (4, Urgency.FULL, Outcome.NONE)
    assert found.scope == ("tiny",)
    assert [note.code for note in found.notes] == [code]
    assert solver.killed == 1


async def test_urgent_answers_arrive_while_a_full_solve_hangs_and_restarts(
    started: Start,
) -> None:
    """They arrive before the time limit of the full request, after it, and during the next full
    request.
    """
    solver = started(Solver([sys.executable, "-c", HANGS], plan=quick, full_limit_s=0.5))
    for round_ in range(2):
        solver.ask(replace(FULL, number=10 * round_), CLUSTER)
        solver.ask(replace(URGENT, number=10 * round_ + 1), CLUSTER)
        first, second = await answers(solver, 2)
        assert (first.urgency, first.outcome) == (Urgency.URGENT, Outcome.PLANNED)
        assert (second.urgency, second.outcome) == (Urgency.FULL, Outcome.NONE)
    assert solver.killed == 2


async def test_a_hanging_thread_is_abandoned(started: Start, hang: threading.Event) -> None:
    """Its request gets an answer, and the next request gets a new thread."""

    def plan(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        if request.number == URGENT.number:
            hang.wait()
        return quick(request, cluster)

    solver = started(Solver([sys.executable, "-c", HANGS], plan, urgent_limit_s=0.2))
    solver.ask(URGENT, CLUSTER)
    (late,) = await answers(solver)
    assert (late.number, late.outcome) == (URGENT.number, Outcome.NONE)
    assert late.notes == (Reason(ReasonCode.SOLVER_TIMEOUT, quantities=(0.2,)),)
    solver.ask(replace(URGENT, number=6), CLUSTER)
    (found,) = await answers(solver)
    assert (found.number, found.outcome) == (6, Outcome.PLANNED)
    hang.set()  # The abandoned thread returns, but no request waits for its answer.
    solver.ask(replace(URGENT, number=7), CLUSTER)
    assert [one.number for one in await answers(solver)] == [7]


async def test_an_error_in_a_planner_gives_an_answer(started: Start) -> None:
    """An error in an urgent solve does not end the controller, and the thread stays."""

    def plan(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        if request.number == URGENT.number:
            raise ZeroDivisionError("of ours")
        return quick(request, cluster)

    solver = started(Solver([sys.executable, "-c", HANGS], plan))
    solver.ask(URGENT, CLUSTER)
    (found,) = await answers(solver)
    assert found == no_plan_answer(
        URGENT, Reason(ReasonCode.SOLVER_ERROR, quoted="ZeroDivisionError: of ours")
    )
    assert not solver.news.is_set(), "asked again at once it would fail again at once"
    solver.ask(replace(URGENT, number=6), CLUSTER)
    async with asyncio.timeout(HANG_S):
        await solver.news.wait()
    assert [one.outcome for one in solver.take()] == [Outcome.PLANNED]
    assert not solver.news.is_set()
    assert solver.killed == 0


async def test_a_newer_request_replaces_the_waiting_one() -> None:
    """At most one request of each urgency waits. The replaced one gets an answer at once that names
    the replacement.
    """
    solver = Solver(["unused"])
    solver.ask(FULL, CLUSTER)
    solver.ask(URGENT, CLUSTER)
    assert solver.take() == (), "an urgent request does not replace a full one"
    solver.ask(replace(FULL, number=6), CLUSTER)
    assert solver.take() == (no_plan_answer(FULL, Reason(ReasonCode.SUPERSEDED)),)
    assert solver.take() == ()


@pytest.mark.parametrize(("valuing_s", "left_s"), [(1.0, 3.5), (60.0, 3.0)])
def test_the_search_keeps_its_share_of_time_after_slow_candidates(
    valuing_s: float, left_s: float
) -> None:
    times = iter([100.0, 100.0 + valuing_s, 102.0 + valuing_s])
    stopwatch = Stopwatch(lambda: next(times))

    assert ANSWER_S - stopwatch() == pytest.approx(left_s)
    assert ANSWER_S - stopwatch() == pytest.approx(left_s - 2.0)
