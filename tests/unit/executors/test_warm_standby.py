"""Warm standby: an instance sleeps instead of stopping and wakes instead of starting. It never
blocks another instance.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from executors.node.node_state import (
    Command,
    Kill,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Terminate,
    Wake,
)
from executors.node.reconcile import accept, observed_instances, reconcile, record_launch
from topics.fleet import Assignment, DesiredInstance, InstanceState

RULES = Rules(standby_engines=frozenset({"default"}))
T0 = 1_000_000
OWNED, RENTED = "r.p.0", "r.owned.1"  # The declared pools decide, not the names.
Steps = tuple[NodeState, list[Command]]


def wish(
    name: str, gpus: tuple[int, ...] = (0,), model: str = "m", drain: bool = False,
    phase: str = "aggregated", version: str = "",
) -> DesiredInstance:  # fmt: skip
    return DesiredInstance(name, model, phase, "g", gpus, drain=drain, version=version)


def pool(node: str) -> str:
    return {OWNED: "r/p/owned", RENTED: "r/p/spot"}[node]


def want(node: str, generation: int, *wishes: DesiredInstance) -> Assignment:
    return Assignment(node, pool(node), generation, 1, 0, wishes)


def up(at_ms: int, in_flight: int = 0) -> ProcessObservation:
    return ProcessObservation(alive=True, healthy=True, in_flight=in_flight, probed_ms=at_ms)


ASLEEP = ProcessObservation(alive=True, asleep=True)


def step(state: NodeState, at_ms: int, rules: Rules = RULES, **seen: ProcessObservation) -> Steps:
    state, commands = reconcile(state, seen, at_ms, rules)
    return state, list(commands)


def states(state: NodeState) -> dict[str, str]:
    return {one.instance: str(one.state) for one in observed_instances(state)}


def serving(node: str, *wishes: DesiredInstance) -> NodeState:
    state, _ = step(accept(NodeState(node, pool(node)), want(node, 1, *wishes)), T0)
    for number, one in enumerate(wishes):
        state = record_launch(state, one.instance, f"h:{number + 1}", (number + 1,))
    state, _ = step(state, T0 + 100, **{one.instance: up(T0) for one in wishes})
    assert set(states(state).values()) == {"ready"}
    return state


def asleep() -> NodeState:
    """The state of an owned node whose only instance was drained and sleeps. No assignment names
    it.
    """
    state = accept(serving(OWNED, wish("a")), want(OWNED, 2, wish("a", drain=True)))
    state, commands = step(state, T0 + 200, a=up(T0 + 150, in_flight=2))
    assert (states(state), commands) == ({"a": "draining"}, [])
    state, commands = step(state, T0 + 300, a=up(T0 + 250))
    assert (states(state), commands) == ({"a": "draining"}, [])  # ordered to sleep, not to end
    state, commands = step(state, T0 + 400, a=ASLEEP)
    assert (states(state), commands) == ({"a": "asleep"}, [])
    state, commands = step(
        accept(state, want(OWNED, 3)), T0 + 500, a=ProcessObservation(alive=True)
    )
    assert (states(state), commands) == ({"a": "asleep"}, [])
    return state


def test_a_new_instance_takes_over_a_sleeping_process_and_is_ready_after_a_token() -> None:
    """The new instance keeps its name and gets the address of the sleeping one. No process is
    launched.
    """
    state = accept(asleep(), want(OWNED, 4, wish("b")))
    state, commands = step(state, T0 + 600, a=ProcessObservation(alive=True))
    assert (states(state), commands) == ({"b": "starting"}, [Wake("a", "b")])
    assert (state.instances[0].endpoint, state.instances[0].launched_ms) == ("h:1", T0 + 600)
    state, commands = step(state, T0 + 700, b=ProcessObservation(alive=True))
    assert (states(state), commands) == ({"b": "starting"}, [])
    state, commands = step(state, T0 + 800, b=up(T0 + 750))
    assert (states(state), commands) == ({"b": "ready"}, [])
    assert state.instances[0].sleep_ms == 0


def test_a_sleeping_process_that_does_not_wake_is_replaced_by_a_cold_start() -> None:
    state = accept(asleep(), want(OWNED, 4, wish("b")))
    state, _ = step(state, T0 + 600, a=ProcessObservation(alive=True))
    late_ms = T0 + 600 + RULES.unhealthy_after_ms
    state, commands = step(state, late_ms, b=ProcessObservation(alive=True))
    assert commands == [Kill("b")]
    state, commands = step(
        state, late_ms + 100, b=ProcessObservation(alive=False, end_reason="killed")
    )
    assert commands == [Launch(wish("b"), "aggregated")]
    assert state.instances[0].failures == 0


def test_an_engine_that_does_not_fall_asleep_is_stopped() -> None:
    """An engine that answers 200 but stays awake still holds its GPU memory."""
    state = accept(serving(OWNED, wish("a")), want(OWNED, 2, wish("a", drain=True)))
    state, _ = step(state, T0 + 200, a=up(T0 + 150))
    state, _ = step(state, T0 + 300, a=up(T0 + 250))
    late_ms = T0 + 400 + RULES.unhealthy_after_ms
    state, commands = step(
        state, late_ms, a=ProcessObservation(alive=True, in_flight=0, probed_ms=late_ms)
    )
    assert (states(state), commands) == ({"a": "stopping"}, [Terminate("a")])


@pytest.mark.parametrize(
    "other",
    [wish("b", model="other"), wish("b", gpus=(0, 1)), wish("b", phase="decode"),
     wish("a", model="other")],
    ids=["model", "gpus", "phase", "same name"],
)  # fmt: skip
def test_a_sleeping_process_ends_before_another_uses_its_gpus(other: DesiredInstance) -> None:
    state = accept(asleep(), want(OWNED, 4, other))
    state, commands = step(state, T0 + 600, a=ProcessObservation(alive=True))
    assert commands == [Terminate("a")]
    assert states(state)["a"] == "stopping"
    state, commands = step(state, T0 + 700, a=ProcessObservation(alive=False))
    state, more = step(state, T0 + 800)
    assert [*commands, *more] == [Launch(other, other.phase)]


def test_an_instance_of_another_phase_wakes_an_engine_that_serves_any_phase() -> None:
    rules = replace(RULES, live_switch_engines=frozenset({"default"}))
    state = accept(asleep(), want(OWNED, 4, wish("b", phase="decode")))
    state, commands = step(state, T0 + 600, rules, a=ProcessObservation(alive=True))
    assert commands == [Wake("a", "b")]
    assert observed_instances(state)[0].phase == "decode"


def test_a_process_sleeps_while_no_instance_needs_its_gpus() -> None:
    late_ms = T0 + 100 * RULES.unhealthy_after_ms
    state, commands = step(asleep(), late_ms, a=ProcessObservation(alive=True))
    assert (states(state), commands) == ({"a": "asleep"}, [])


def test_on_a_rented_node_a_process_sleeps_only_next_to_a_serving_instance() -> None:
    node, b = RENTED, wish("b", (1,))
    state = serving(node, wish("a"), b)
    state = accept(state, want(node, 2, wish("a", drain=True), b))
    state, _ = step(state, T0 + 300, a=up(T0 + 250), b=up(T0))
    state, _ = step(state, T0 + 300, a=up(T0 + 300), b=up(T0))
    state, _ = step(state, T0 + 400, a=ASLEEP, b=up(T0))
    assert states(state) == {"a": "asleep", "b": "ready"}
    state = accept(state, want(node, 3, replace(b, drain=True)))
    state, commands = step(state, T0 + 500, a=ProcessObservation(alive=True), b=up(T0))
    assert (states(state), commands) == ({"a": "stopping", "b": "draining"}, [Terminate("a")])
    state, commands = step(state, T0 + 600, a=ProcessObservation(alive=False), b=up(T0 + 550))
    assert commands == [Terminate("b")]


def test_no_process_sleeps_on_a_reclaimed_node() -> None:
    rules = replace(RULES, drain_by_ms=T0 + 60_000)
    _, commands = step(asleep(), T0 + 600, rules, a=ProcessObservation(alive=True))
    assert commands == [Terminate("a")]


def test_an_engine_without_declared_standby_is_stopped() -> None:
    state = accept(serving(OWNED, wish("a")), want(OWNED, 2, wish("a", drain=True)))
    state, _ = step(state, T0 + 200, Rules(), a=up(T0 + 150))
    _, commands = step(state, T0 + 300, Rules(), a=up(T0 + 250))
    assert commands == [Terminate("a")]


def test_a_cancelled_drain_wakes_the_process() -> None:
    state = accept(serving(OWNED, wish("a")), want(OWNED, 2, wish("a", drain=True)))
    state, _ = step(state, T0 + 300, a=up(T0 + 250))
    state, _ = step(state, T0 + 400, a=up(T0 + 350))
    state, commands = step(
        accept(state, want(OWNED, 3, wish("a"))), T0 + 500, a=ProcessObservation(alive=True)
    )
    assert (states(state), commands) == ({"a": "starting"}, [])
    assert state.instances[0].sleep_ms > 0  # wake-up comes before the token probe
    state, _ = step(state, T0 + 600, a=up(T0 + 550))
    assert states(state) == {"a": "ready"}


def test_an_instance_assigned_again_under_its_own_name_wakes() -> None:
    state, commands = step(
        accept(asleep(), want(OWNED, 4, wish("a"))), T0 + 600, a=ProcessObservation(alive=True)
    )
    assert (states(state), commands) == ({"a": "starting"}, [])
    assert state.instances[0].state is InstanceState.STARTING


def test_a_sleeping_process_that_dies_is_dropped() -> None:
    state, commands = step(asleep(), T0 + 600, a=ProcessObservation(alive=False))
    assert (states(state), commands) == ({}, [])


@pytest.mark.parametrize(("former", "version", "wakes"), [("", "e-n", True), ("e-o", "e-n", False)])
def test_a_sleeping_process_of_another_version_is_not_woken(
    former: str, version: str, wakes: bool
) -> None:
    """An instance of an older controller names no version."""
    state = asleep()
    sleeper = state.instances[0]
    sleeper = replace(sleeper, desired=replace(sleeper.desired, version=former))
    state = replace(state, instances=(sleeper,))
    state = accept(state, want(OWNED, 4, wish("b", version=version)))
    state, commands = step(state, T0 + 600, a=ProcessObservation(alive=True))
    assert commands == ([Wake("a", "b")] if wakes else [Terminate("a")])
    assert {one.version for one in observed_instances(state) if one.instance == "b"} == {version}
