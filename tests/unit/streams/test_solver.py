"""The solver: its pipe carries values unchanged, and a process that hangs is killed."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from autoscaler.controller_state import Refinement

from autoscaler.domain.cluster import Mode
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.effects import RefinementRequested, ScaleOutTablesRequested
from streams.solver.client import Solver, solver_argv
from streams.solver.wire import answer, answered, ask, asked, failure
from streams.solver.work import solve
from tests.unit.streams.test_loop import CLUSTER

TABLES = ScaleOutTablesRequested((("tiny", Lengths(512.0, 128.0)),))
REFINE = RefinementRequested(
    4, 9, (Demand("tiny", 1.5, Lengths(512.0, 128.0)),), (), (("r/l4/on-demand", 2),), (), ("tiny",)
)
CONFIG = """
regions: {r: {l4: {gpu: L4, per_node: 1, max: 2, price: 1}}}
models:
  tiny:
    source: meta-llama/Llama-3.1-8B-Instruct
    engine: fp8
    slo: {ttft: 2s, tpot: 100ms}
engines:
  fp8: {args: [--quantization=fp8]}
"""


@pytest.mark.parametrize("question", [TABLES, REFINE])
def test_a_question_comes_back_as_it_was_asked(question: Any) -> None:
    """With the prices of the moment."""
    number, back, prices = asked(ask(7, question, CLUSTER))
    assert (number, back) == (7, question)
    assert prices == {pool.id: pool.price_usd_per_h for pool in CLUSTER.pools}


def test_answers_come_back_as_they_were_given() -> None:
    """Tables with every combo and entry, refinements, and failures as texts."""
    tables = solve(TABLES, CLUSTER)
    assert isinstance(tables, tuple)
    assert tables[0].entries, "an empty table would prove nothing"
    assert answered(answer(1, tables)) == (1, tables)
    refined = solve(REFINE, CLUSTER)
    assert isinstance(refined, Refinement)
    assert refined.targets
    assert answered(answer(2, refined)) == (2, refined)
    assert answered(failure(3, "why")) == (3, "why")


async def take(solver: Solver) -> tuple[Any, ...]:
    """What the solver answers next."""
    async with asyncio.timeout(30):
        while True:
            found = solver.take()
            if found.tables or found.refinements:
                return found.tables + found.refinements
            await asyncio.sleep(0.01)  # real processes: there is no event to wait for


@pytest.fixture
async def started() -> AsyncIterator[Any]:
    tasks: list[asyncio.Task[None]] = []

    def start(solver: Solver) -> Solver:
        tasks.append(asyncio.create_task(solver.run()))
        return solver

    yield start
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_the_real_process_answers(started: Any, tmp_path: Path) -> None:
    """The same tables as in this process: same lock, same machine, same bytes."""
    config = tmp_path / "shoal.yaml"
    config.write_text(CONFIG)
    solver = started(Solver(solver_argv(config, Mode.ACT)))
    solver.ask(TABLES, CLUSTER)
    (table,) = await take(solver)
    expected = solve(TABLES, CLUSTER)
    assert isinstance(expected, tuple)
    assert table == expected[0]


@pytest.mark.parametrize(
    "script",
    ["import time; time.sleep(60)", "import sys; sys.stdin.readline()", "print('{}', flush=True)"],
    ids=["hangs", "ends", "talks rubbish"],
)
async def test_a_process_that_fails_is_an_answer_of_its_own(started: Any, script: str) -> None:
    """A refinement that never comes is said to have timed out, so that nobody waits for it."""
    limits = {ScaleOutTablesRequested: 0.3, RefinementRequested: 0.3}
    solver = started(Solver([sys.executable, "-c", script], limits))
    solver.ask(REFINE, CLUSTER)
    (found,) = await take(solver)
    assert found == Refinement(REFINE.request, timed_out=True)
    assert solver.killed == 1


async def test_a_newer_refinement_answers_for_the_older_one() -> None:
    """One waits at most; what it replaced is told so at once."""
    solver = Solver(["unused"])
    solver.ask(REFINE, CLUSTER)
    newer = RefinementRequested(5, 10, REFINE.demands, (), (), (), ("tiny",))
    solver.ask(newer, CLUSTER)
    assert solver.take().refinements == (Refinement(REFINE.request, timed_out=True),)
    assert solver.take().refinements == ()
