"""Role switches: requested by the assignment, proven by an answer, and rolled
back after a failure.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from executors.node.node_state import (
    Command,
    Kill,
    Launch,
    NodeState,
    ProcessObservation,
    Rules,
    Terminate,
)
from executors.node.reconcile import accept, observed_instances, reconcile, record_launch
from topics.fleet import Assignment, DesiredInstance, InstanceState

RULES = Rules()
ROUTING = replace(RULES, live_switch_engines=frozenset({"default"}))
T0 = 1_000_000
POOL = "r/p/owned"


def want(generation: int, phase: str, drain: bool = False) -> Assignment:
    wish = DesiredInstance("a", "m", phase, "g", (0,), drain=drain)
    return Assignment("n", POOL, generation, 1, 0, (wish,))


def up(at_ms: int, in_flight: int = 0) -> ProcessObservation:
    return ProcessObservation(alive=True, healthy=True, in_flight=in_flight, probed_ms=at_ms)


DEAD = ProcessObservation(alive=False, end_reason="exit code 1: no such role")


def serving(rules: Rules, phase: str = "prefill") -> NodeState:
    state, _ = reconcile(accept(NodeState("n", POOL), want(1, phase)), {}, T0, rules)
    state = record_launch(state, "a", "h:1", (1,))
    state, _ = reconcile(state, {"a": up(T0)}, T0 + 100, rules)
    assert state.instances[0].state is InstanceState.READY
    return state


def step(
    state: NodeState, seen: ProcessObservation, at_ms: int, rules: Rules
) -> tuple[NodeState, list[Command]]:
    state, commands = reconcile(state, {"a": seen}, at_ms, rules)
    return state, list(commands)


def shown(state: NodeState) -> tuple[str, str]:
    (instance,) = observed_instances(state)
    return str(instance.state), instance.phase


def test_a_switch_by_routing_restarts_no_process_and_needs_a_new_answer() -> None:
    """A token that was requested after the switch proves the new role. An
    earlier answer does not.
    """
    state = accept(serving(ROUTING), want(2, "decode"))
    state, commands = step(state, up(T0 + 200, 3), T0 + 300, ROUTING)
    assert (shown(state), commands) == (("switching", "prefill"), [])
    state, _ = step(state, up(T0 + 299), T0 + 400, ROUTING)
    assert shown(state) == ("switching", "prefill")
    state, commands = step(state, up(T0 + 350, 3), T0 + 500, ROUTING)
    assert (shown(state), commands) == (("ready", "decode"), [])


def test_a_failed_switch_by_routing_is_rolled_back_and_not_repeated() -> None:
    """The reason stays in the status. Another desired role leads to another try."""
    state = accept(serving(ROUTING), want(2, "decode"))
    state, _ = step(state, up(T0), T0 + 300, ROUTING)
    late_ms = T0 + 300 + ROUTING.unhealthy_after_ms
    state, commands = step(state, ProcessObservation(alive=True), late_ms, ROUTING)
    assert (shown(state), commands) == (("ready", "prefill"), [])
    assert state.instances[0].reason.startswith("switch to decode failed: no answer")
    state, _ = step(state, up(late_ms + 50), late_ms + 100, ROUTING)
    assert shown(state) == ("ready", "prefill")
    state = accept(accept(state, want(3, "prefill")), want(4, "aggregated"))
    state, _ = step(state, up(late_ms + 150), late_ms + 200, ROUTING)
    assert shown(state) == ("switching", "prefill")


def relaunched(state: NodeState, at_ms: int) -> tuple[NodeState, int]:
    """(state, time in ms) after the drain, the end of the old process and the launch of the new
    one.
    """
    state, commands = step(state, up(at_ms - 1, 2), at_ms, RULES)
    assert (shown(state), commands) == (("switching", "prefill"), [])
    state, commands = step(state, up(at_ms + 50), at_ms + 100, RULES)
    assert commands == [Terminate("a")]
    state, commands = step(state, ProcessObservation(alive=False), at_ms + 200, RULES)
    wish = state.instances[0].desired
    assert commands == [Launch(wish, "decode")]
    return record_launch(state, "a", "h:2", (2,)), at_ms + 200


def test_a_switch_by_relaunch_waits_for_requests_in_flight() -> None:
    """The idle process gets SIGTERM, and a new one starts in the new role. This
    counts as no fault.
    """
    state = accept(serving(RULES), want(2, "decode"))
    state, at_ms = relaunched(state, T0 + 300)
    state, commands = step(state, up(at_ms + 50), at_ms + 100, RULES)
    assert (shown(state), commands) == (("ready", "decode"), [])
    assert state.instances[0].restarts == 0


def test_a_failed_switch_by_relaunch_is_rolled_back() -> None:
    """After two failed tries the instance returns to its old role with the reason, and the switch
    is not repeated.
    """
    state = accept(serving(RULES), want(2, "decode"))
    state, at_ms = relaunched(state, T0 + 300)
    launches: list[str] = []
    while shown(state)[0] != "ready":
        at_ms += 100
        dies = state.instances[0].has_process and state.instances[0].phase == "decode"
        state, commands = step(state, DEAD if dies else up(at_ms), at_ms, RULES)
        launches += [command.phase for command in commands if isinstance(command, Launch)]
    assert launches == ["decode", "prefill"]
    assert shown(state) == ("ready", "prefill")
    assert "switch to decode failed: exit code 1: no such role" in state.instances[0].reason
    state, commands = step(state, up(at_ms + 50), at_ms + 100, RULES)
    assert (shown(state)[0], commands) == ("ready", [])


def test_an_instance_whose_old_role_fails_too_is_given_up_after_three_attempts() -> None:
    state = accept(serving(RULES), want(2, "decode"))
    state, at_ms = relaunched(state, T0 + 300)
    launches: list[str] = []
    while shown(state)[0] != "failed":
        at_ms += 100
        state, commands = step(state, DEAD, at_ms, RULES)
        launches += [command.phase for command in commands if isinstance(command, Launch)]
        assert at_ms < T0 + 3_600_000
    assert launches == ["decode", "prefill", "prefill", "prefill"]
    assert "given up after 3 attempts: exit code 1: no such role" in state.instances[0].reason


def test_a_drain_ends_a_switch() -> None:
    """A draining instance needs no new role."""
    state = accept(serving(RULES), want(2, "decode"))
    state, _ = step(state, up(T0, 2), T0 + 300, RULES)
    state = accept(state, want(3, "decode", drain=True))
    state, commands = step(state, up(T0 + 350, 2), T0 + 400, RULES)
    assert (shown(state)[0], commands) == ("draining", [])
    state, commands = step(state, up(T0 + 450), T0 + 500, RULES)
    assert commands == [Terminate("a")]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from(["prefill", "decode", "aggregated", "", "die"]), max_size=12),
    st.booleans(),
)
@example(["decode", "prefill", "die", *["prefill"] * 4, "decode", "die", "decode", "die"], False)
def test_the_last_desired_role_is_served_after_any_sequence(
    wishes: list[str], routing: bool
) -> None:
    """Desired roles change in the middle of switches, and processes die. In the end the instance
    serves the last role, or its status has the reason: given up, or rolled back after two processes
    died.
    """
    rules = ROUTING if routing else RULES
    state, generation, phase, alive, at_ms = serving(rules), 1, "prefill", True, T0 + 200
    for wished in [*wishes, *[""] * 80]:
        die = wished == "die"
        if wished and not die:
            generation, phase = generation + 1, wished
            state = accept(state, want(generation, phase))
        alive = alive and not die
        seen = up(at_ms) if alive else ProcessObservation(alive=False)
        held = state.instances[0].has_process
        state, commands = reconcile(state, {"a": seen} if held else {}, at_ms, rules)
        for command in commands:
            if isinstance(command, Launch):
                assert not alive, "one process at a time"
                alive = True
                state = record_launch(state, "a", "h:1", (1,))
            elif isinstance(command, (Terminate, Kill)):
                alive = False
        at_ms += 1000
    item = state.instances[0]
    if item.refused_phase == phase:
        assert wishes.count("die") >= 2 and "failed" in item.reason
        phase = item.phase
    assert item.state is InstanceState.FAILED or shown(state) == ("ready", phase)
