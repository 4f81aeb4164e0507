"""A recorded takeover: 0.8 req/s of 20 input and 3 output tokens, on a fleet that was sized for the
declared lengths. The controller has no memory, and the declared lengths say that it needs more.
"""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import orjson

from autoscaler.decide import ControllerState, decide
from autoscaler.domain.cluster import Cluster
from autoscaler.planning.planner_messages import PlanAnswer
from autoscaler.simulation.virtual_planner import plan_in_process
from autoscaler.state.effects import PublishDecision, SolveRequested
from streams.decision_log.observation_diff import ObservationReader
from topics.codec import read_value

RECORDED = Path(__file__).parent / "data" / "restart_with_short_requests.jsonl.gz"


def test_a_takeover_without_memory_buys_nothing() -> None:
    """Each answer of the planner arrives at the next recorded tick."""
    with gzip.open(RECORDED) as recorded:
        lines = [orjson.loads(line) for line in recorded]
    cluster = read_value(Cluster, lines[0]["cluster"])
    state = read_value(ControllerState, lines[0]["state"])
    running = {group.name for group in state.groups}
    reader = ObservationReader()
    answers: list[PlanAnswer] = []
    changes = []
    for line in lines[1:]:
        seen = replace(reader.read(line["seen"]), answers=tuple(answers))
        state, effects = decide(state, seen, cluster, line["now_ms"])
        answers = [
            plan_in_process(one.request, cluster)
            for one in effects
            if isinstance(one, SolveRequested)
        ]
        changes += [one.record.change for one in effects if isinstance(one, PublishDecision)]
    assert state.term.ticked_ms - state.term.started_ms > 10_000
    assert not any(changes)
    assert {group.name for group in state.groups} == running
