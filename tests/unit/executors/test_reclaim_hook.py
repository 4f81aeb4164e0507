"""Reclaim notices: a command reads them, statuses report them, and drains end in time for them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest

from executors.node.node_state import NodeState, ProcessObservation, Rules, Terminate
from executors.node.reclaim_hook import read_notice
from executors.node.reconcile import accept, reconcile
from topics.fleet import Assignment, DesiredInstance
from topics.records import InstanceState


def command(code: str) -> tuple[str, ...]:
    return (
        sys.executable,
        "-S",
        "-c",
        f"import json, sys, time; asked = json.load(sys.stdin); {code}",
    )


async def test_the_command_gets_the_node_and_answers_in_json() -> None:
    """An answer without the key means that there is no notice."""
    node = command("print(json.dumps({'seconds_left': 90 if asked['node'] == 'n1' else 1}))")
    assert await read_notice(node, "n1", 5.0) == 90
    assert await read_notice(command("print('{}')"), "n1", 5.0) is None


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("time.sleep(60)", TimeoutError),
        ("sys.exit(3)", ValueError),
        ("print('soon')", ValueError),
        ("print(json.dumps({'seconds_left': -5}))", ValueError),
        ("print('[]')", ValueError),
    ],
)
async def test_a_command_without_an_answer_is_no_notice(code: str, error: type[Exception]) -> None:
    """The command is stopped at its time limit, and its partial output is ignored."""
    with pytest.raises(error):
        await read_notice(command(code), "n1", 0.5 if error is TimeoutError else 5.0)


def test_a_drain_ends_before_the_reclaim() -> None:
    """The notice limits the drain even if the policy allows more time."""
    rules = Rules(drain_by_ms=50_000)
    wish = DesiredInstance("a", "m", "aggregated", "g", (0,))
    busy = ProcessObservation(alive=True, healthy=True, in_flight=2, probed_ms=10**9)
    state, _ = reconcile(
        accept(NodeState("n", "p"), Assignment("n", "p", 1, 1, 0, (wish,))), {}, 1000, rules
    )
    state, _ = reconcile(state, {"a": busy}, 2000, rules)
    drain = Assignment("n", "p", 2, 1, 0, (replace(wish, drain=True),), drain_timeout_ms=900_000)
    state, commands = reconcile(accept(state, drain), {"a": busy}, 49_000, rules)
    assert commands == ()
    state, commands = reconcile(state, {"a": busy}, 50_000, rules)
    assert commands == (Terminate("a"),)
    assert state.instances[0].state is InstanceState.STOPPING
