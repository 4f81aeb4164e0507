"""A model that no single node can hold, on two nodes. The whole instance starts
and ends together.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.conftest import Start
from tests.acceptance.shoal_up import CONTROLLER, ENGINE, Proc, Run, served_by

CONFIG = """mode: act
regions:
  eu: {{l40s: {{gpu: L40S, per_node: 1, max: 6, price: 1.9}}}}
engines:
  default: {{pipelines: same-slice}}
models:
  big:
    source: Qwen/Qwen3-32B
    slo: {{ttft: 10s, tpot: 250ms}}
    workload: {{input: 200, output: 60, req_per_s: {req_per_s}}}
    disaggregate: false
    max_len: 8192
    scale_in_after: 60s
"""


@pytest.fixture(scope="module")
def runs(start: Start) -> Iterator[tuple[Run, Run]]:
    """Two runs: one with too much load from the start, and one with a single gang."""
    yield (
        start(config=CONFIG.format(req_per_s=60), trace_s=600),
        start(config=CONFIG.format(req_per_s=1)),
    )


def test_a_gang_ends_and_is_drained_as_one(runs: tuple[Run, Run]) -> None:
    large, small = runs
    with ThreadPoolExecutor(max_workers=2) as pool:
        found = [pool.submit(drained, large), pool.submit(lost, small)]
    for one in found:
        one.result()


def rank(engine: Proc) -> int:
    return int(json.loads(engine.option("--gang"))["rank"])


def gangs(run: Run) -> dict[str, list[Proc]]:
    """The engines of a run by gang, with rank 0 first."""
    found: dict[str, list[Proc]] = {}
    for engine in sorted(run.processes(ENGINE), key=rank):
        found.setdefault(json.loads(engine.option("--gang"))["gang"], []).append(engine)
    return found


def serving(run: Run) -> dict[str, list[Proc]]:
    """The gangs of a run, once each is complete and its rank 0 has answered some requests."""
    found = gangs(run)
    whole = all([rank(one) for one in ranks] == [0, 1] for ranks in found.values())
    return found if whole and all(served_by(ranks[0]) >= 5 for ranks in found.values()) else {}


def drained(run: Run) -> None:
    """Surplus capacity is removed with all of its ranks, and no request is lost."""
    run.url()
    before = run.until(lambda: serving(run), "several gangs that serve")
    assert len(before) > 1
    run.until(lambda: len(gangs(run)) < len(before), "a gang that is gone")
    assert run.end() == 0
    requests = run.summary["requests"]
    assert requests["failed"] == requests["dropped"] == 0
    assert requests["served"] >= 0.99 * requests["sent"] > 0
    assert run.processes() == []


def lost(run: Run) -> None:
    """A new controller finds the gang. If a rank dies, the gang ends and another one starts.
    Without their supervisor, all processes end by themselves.
    """
    run.url()
    (ranks,) = run.until(lambda: serving(run), "a gang that serves").values()
    told = len(run.lines)
    (controller,) = run.processes(CONTROLLER)
    os.kill(controller.pid, signal.SIGKILL)
    run.line(r"rebuilt from the topics: 2 instances of 1 model ", after=told)
    assert {engine.pid for engine in run.processes(ENGINE)} == {engine.pid for engine in ranks}
    os.kill(ranks[1].pid, signal.SIGKILL)
    run.line(r"rank 1 of 2: signal SIGKILL", after=told)
    old = {engine.pid for engine in ranks}
    run.until(
        lambda: (now := serving(run)) and not old & {e.pid for r in now.values() for e in r},
        "a gang in its place",
    )
    modules = {process.module for process in run.processes()}
    assert modules >= {ENGINE, CONTROLLER, "streams.broker", "executors.node", "executors.gateway"}
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    run.until(lambda: not run.processes(), "end of all its processes")
