"""Guarantees of the reconciler, with their deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executors.node.node_state import Kill, Launch, NodeState, ProcessObservation, Rules, Terminate
from executors.node.reconcile import accept, observed_instances, reconcile, record_launch
from topics.fleet import Assignment, DesiredInstance, InstanceState

RULES = Rules()
T0 = 1_000_000
UP = ProcessObservation(alive=True, healthy=True, in_flight=0, probed_ms=10**9)
BUSY = ProcessObservation(alive=True, healthy=True, in_flight=3, probed_ms=10**9)
SILENT = ProcessObservation(alive=True)
DEAD = ProcessObservation(alive=False, end_reason="exit code 1: out of memory")


def wish(name: str = "a", gpus: tuple[int, ...] = (0,), drain: bool = False) -> DesiredInstance:
    return DesiredInstance(name, "m", "aggregated", "g", gpus, drain=drain)


def want(generation: int, *wishes: DesiredInstance, token: int = 1) -> Assignment:
    return Assignment("n", "r/p/owned", generation, token, 0, wishes)


def begin(*wishes: DesiredInstance) -> NodeState:
    """The state of a node whose instances were launched at T0."""
    state = accept(NodeState("n", "r/p/owned"), want(1, *wishes))
    state, commands = reconcile(state, {}, T0, RULES)
    assert commands == tuple(Launch(item, item.phase) for item in wishes)
    for item in wishes:
        state = record_launch(state, item.instance, "127.0.0.1:20001", (20001,))
    return state


def ready(*wishes: DesiredInstance) -> NodeState:
    state, _ = reconcile(begin(*wishes), {w.instance: UP for w in wishes}, T0 + 1000, RULES)
    assert all(item.state is InstanceState.READY for item in state.instances)
    return state


def test_an_instance_is_ready_when_it_answers_and_not_before() -> None:
    """A running process counts as starting. Its first answer with status 200 makes the instance
    ready.
    """
    state, _ = reconcile(begin(wish()), {"a": SILENT}, T0 + 500, RULES)
    assert state.instances[0].state is InstanceState.STARTING
    state, _ = reconcile(state, {"a": UP}, T0 + 900, RULES)
    assert state.instances[0].state is InstanceState.READY
    assert state.instances[0].since_ms == T0 + 900


def test_a_lower_leader_token_is_refused_and_counted() -> None:
    """An assignment of an older leader changes nothing, whatever its generation."""
    state = accept(NodeState("n", "r/p/owned"), want(3, wish(), token=7))
    after = accept(state, want(9, token=6))
    assert after.assignment == state.assignment
    assert after.refused == {"leader token": 1}
    assert accept(state, want(1, token=8)).assignment == want(1, token=8)


def test_an_assignment_of_another_node_is_refused() -> None:
    """Such an assignment is counted but not applied."""
    other = Assignment("other", "r/p/owned", 5, 9, 0, (wish(),))
    state = accept(NodeState("n", "r/p/owned"), other)
    assert state.assignment is None
    assert state.refused == {"node": 1}


def test_without_an_assignment_running_instances_stay() -> None:
    """An executor has no assignment if it starts without a broker."""
    state = ready(wish())
    amnesic = NodeState("n", "r/p/owned", None, state.instances)
    after, commands = reconcile(amnesic, {"a": UP}, T0 + 9000, RULES)
    assert commands == ()
    assert after.instances[0].state is InstanceState.READY


@pytest.mark.parametrize("gone", [True, False])
def test_a_drain_waits_until_nothing_is_in_flight(gone: bool) -> None:
    """`drain: true` and absence from the assignment have the same effect."""
    state = accept(ready(wish()), want(2) if gone else want(2, wish(drain=True)))
    state, commands = reconcile(state, {"a": BUSY}, T0 + 2000, RULES)
    assert state.instances[0].state is InstanceState.DRAINING
    assert commands == ()
    state, commands = reconcile(state, {"a": UP}, T0 + 5000, RULES)
    assert commands == (Terminate("a"),)
    state, commands = reconcile(state, {"a": DEAD}, T0 + 6000, RULES)
    assert commands == ()
    assert [item.state for item in state.instances] == ([] if gone else [InstanceState.STOPPED])


def test_an_idle_report_from_before_the_drain_does_not_count() -> None:
    """It proves nothing, because routes still named the instance."""
    state = accept(ready(wish()), want(2, wish(drain=True)))
    early = ProcessObservation(alive=True, healthy=True, in_flight=0, probed_ms=T0 + 1500)
    _, commands = reconcile(state, {"a": early}, T0 + 2000, RULES)
    assert commands == ()


def test_a_drain_waits_until_kv_is_fetched() -> None:
    """A prefill instance is not stopped while a decode instance still has to fetch KV from it."""
    state = accept(ready(wish()), want(2, wish(drain=True)))
    holding = ProcessObservation(alive=True, healthy=True, in_flight=0, held_kv=1, probed_ms=10**9)
    _, commands = reconcile(state, {"a": holding}, T0 + 2000, RULES)
    assert commands == ()


def test_after_the_drain_deadline_the_engine_is_terminated_then_killed_repeatedly() -> None:
    """SIGTERM, a pause, then SIGKILL. The reason names the lost requests."""
    state = accept(ready(wish()), want(2, wish(drain=True)))
    state, _ = reconcile(state, {"a": BUSY}, T0 + 2000, RULES)
    now_ms = T0 + 2000 + RULES.drain_timeout_ms
    state, commands = reconcile(state, {"a": BUSY}, now_ms, RULES)
    assert commands == (Terminate("a"),)
    assert "3 in flight" in state.instances[0].reason
    state, commands = reconcile(state, {"a": BUSY}, now_ms + RULES.kill_after_ms - 1, RULES)
    assert commands == ()
    for _ in range(2):
        now_ms += RULES.kill_after_ms
        state, commands = reconcile(state, {"a": BUSY}, now_ms, RULES)
        assert commands == (Kill("a"),)


def test_a_drain_can_be_cancelled_until_sigterm() -> None:
    """An instance that is assigned again before SIGTERM serves again after its next answer."""
    state = accept(ready(wish()), want(2, wish(drain=True)))
    state, _ = reconcile(state, {"a": BUSY}, T0 + 2000, RULES)
    state, commands = reconcile(accept(state, want(3, wish())), {"a": SILENT}, T0 + 3000, RULES)
    assert commands == ()
    state, _ = reconcile(state, {"a": UP}, T0 + 3100, RULES)
    assert state.instances[0].state is InstanceState.READY
    assert state.instances[0].restarts == 0


def test_an_instance_whose_drain_was_cancelled_has_time_to_answer() -> None:
    """Its launch was long ago, but the start time-out does not apply again, so it is not killed."""
    later_ms = T0 + 2 * RULES.start_timeout_ms
    state = accept(ready(wish()), want(2, wish(drain=True)))
    state, _ = reconcile(state, {"a": BUSY}, later_ms, RULES)
    state, commands = reconcile(
        accept(state, want(3, wish())), {"a": SILENT}, later_ms + 100, RULES
    )
    assert commands == ()
    state, commands = reconcile(state, {"a": UP}, later_ms + 200, RULES)
    assert (commands, state.instances[0].state) == ((), InstanceState.READY)
    # An instance that no longer answers is still detected.
    revoked = accept(state, want(4, wish(drain=True)))
    revoked, _ = reconcile(revoked, {"a": BUSY}, later_ms + 300, RULES)
    revoked, _ = reconcile(accept(revoked, want(5, wish())), {"a": SILENT}, later_ms + 400, RULES)
    silent_ms = later_ms + 400 + RULES.start_timeout_ms
    assert reconcile(revoked, {"a": SILENT}, silent_ms, RULES)[1] == (Kill("a"),)


def test_a_missed_answer_from_before_a_cancelled_drain_does_not_count() -> None:
    """The instance answers now, so it has not been unhealthy since the missed answer."""
    state, _ = reconcile(
        ready(wish()), {"a": ProcessObservation(alive=True, healthy=False)}, T0 + 2000, RULES
    )
    state, _ = reconcile(accept(state, want(2, wish(drain=True))), {"a": SILENT}, T0 + 2100, RULES)
    now_ms = T0 + 2100 + RULES.unhealthy_after_ms
    state, _ = reconcile(state, {"a": SILENT}, now_ms, RULES)
    state, commands = reconcile(accept(state, want(3, wish())), {"a": SILENT}, now_ms + 100, RULES)
    assert commands == ()
    state, commands = reconcile(state, {"a": UP}, now_ms + 200, RULES)
    assert (commands, state.instances[0].state) == ((), InstanceState.READY)


def test_a_starting_instance_that_is_no_longer_assigned_stops_at_once() -> None:
    """It has no requests in flight."""
    state = accept(begin(wish()), want(2))
    _, commands = reconcile(state, {"a": SILENT}, T0 + 100, RULES)
    assert commands == (Terminate("a"),)


def test_a_new_instance_waits_for_the_gpus_of_the_old_one() -> None:
    """The launch follows the end of the process that held the GPUs."""
    state = accept(ready(wish("a", (0, 1))), want(2, wish("b", (1, 2))))
    state, commands = reconcile(state, {"a": BUSY}, T0 + 2000, RULES)
    assert commands == ()
    assert state.instances[1].reason == "waits for its GPUs"
    state, commands = reconcile(state, {"a": DEAD}, T0 + 3000, RULES)
    assert commands == (Launch(wish("b", (1, 2)), "aggregated"),)


@pytest.mark.parametrize("note", [DEAD.end_reason, "exit code 0: out of memory"])
def test_a_dead_engine_is_restarted_with_growing_pauses_then_fails(note: str) -> None:
    """After three short-lived starts the state is FAILED with the last reason. An exit code of 0
    proves nothing: vLLM's API server exits with 0 if its core dies.
    """
    state, now_ms, pauses = begin(wish()), T0, []
    while state.instances[0].state is not InstanceState.FAILED:
        state, _ = reconcile(
            state, {"a": ProcessObservation(alive=False, end_reason=note)}, now_ms, RULES
        )
        died_ms = now_ms
        while (
            not state.instances[0].has_process
            and state.instances[0].state is InstanceState.STARTING
        ):
            now_ms += 100
            state, _ = reconcile(state, {}, now_ms, RULES)
        pauses.append(now_ms - died_ms)
    assert pauses == [RULES.backoff_ms, 2 * RULES.backoff_ms, 0]
    assert state.instances[0].restarts == 2
    assert "3 attempts" in state.instances[0].reason
    assert "out of memory" in state.instances[0].reason
    assert reconcile(state, {}, now_ms + 10**7, RULES)[1] == ()


def test_a_stable_instance_that_dies_is_restarted_at_once() -> None:
    """It was ready for longer than stable_ms. The restart has no pause, and the loss counts as the
    first failure.
    """
    later_ms = T0 + 1000 + RULES.stable_ms
    state, commands = reconcile(ready(wish()), {"a": DEAD}, later_ms, RULES)
    assert commands == (Launch(wish(), "aggregated"),)
    assert (state.instances[0].restarts, state.instances[0].failures) == (1, 1)


def test_an_instance_that_does_not_start_in_time_is_killed() -> None:
    """The time-out counts from the launch. The reason is still reported after the kill."""
    state, commands = reconcile(begin(wish()), {"a": SILENT}, T0 + RULES.start_timeout_ms, RULES)
    assert commands == (Kill("a"),)
    state, _ = reconcile(state, {"a": DEAD}, T0 + RULES.start_timeout_ms + 100, RULES)
    assert "not ready 600 s" in state.instances[0].reason


def test_a_wait_is_the_reason_of_a_start_until_it_ends() -> None:
    waits = replace(SILENT, waiting="no node yet", code="Unschedulable")
    state, _ = reconcile(begin(wish()), {"a": waits}, T0 + 1000, RULES)
    seen = observed_instances(state)[0]
    assert (seen.reason, seen.code) == ("no node yet", "Unschedulable")
    started, _ = reconcile(state, {"a": SILENT}, T0 + 2000, RULES)
    assert (started.instances[0].reason, started.instances[0].code) == ("", "")
    answers, _ = reconcile(state, {"a": replace(waits, healthy=True)}, T0 + 2000, RULES)
    assert answers.instances[0].state is InstanceState.READY
    assert (answers.instances[0].reason, answers.instances[0].code) == ("", "")


def test_a_wait_that_outlasts_the_start_is_part_of_the_reason() -> None:
    waits = replace(SILENT, waiting="scheduling gates: q", code="SchedulingGated")
    late_ms = T0 + RULES.start_timeout_ms
    state, commands = reconcile(begin(wish()), {"a": waits}, late_ms, RULES)
    assert commands == (Kill("a"),)
    state, _ = reconcile(state, {"a": DEAD}, late_ms + 100, RULES)
    assert "began to start: scheduling gates: q" in state.instances[0].reason
    assert state.instances[0].code == "SchedulingGated"


def test_an_instance_that_stops_answering_is_killed_and_restarted() -> None:
    """One missed answer has no effect, but silence for unhealthy_after_ms has."""
    state = ready(wish())
    deaf = ProcessObservation(alive=True, healthy=False)
    state, commands = reconcile(state, {"a": deaf}, T0 + 2000, RULES)
    assert commands == ()
    assert reconcile(state, {"a": UP}, T0 + 3000, RULES)[0].instances[0].unhealthy_since_ms == 0
    state, commands = reconcile(state, {"a": deaf}, T0 + 2000 + RULES.unhealthy_after_ms, RULES)
    assert commands == (Kill("a"),)


def test_time_without_a_processor_counts_against_no_deadline() -> None:
    """On an overloaded machine an engine starts and answers late. A kill would add load."""
    state = begin(wish())
    for starved_ms in (0, 200_000, 400_000):
        slow = ProcessObservation(alive=True, healthy=False, starved_ms=starved_ms)
        now_ms = T0 + RULES.start_timeout_ms + max(0, starved_ms - 1)
        state, commands = reconcile(state, {"a": slow}, now_ms, RULES)
        assert commands == (() if starved_ms else (Kill("a"),))
        state = begin(wish()) if not starved_ms else state
    assert reconcile(state, {"a": slow}, now_ms + 1, RULES)[1] == (Kill("a"),)
    state, now_ms = ready(wish()), T0 + 2000
    for starved_ms in (0, 20_000, 40_000, 40_000):
        deaf = ProcessObservation(alive=True, healthy=False, starved_ms=starved_ms)
        state, commands = reconcile(state, {"a": deaf}, now_ms, RULES)
        assert commands == ()
        now_ms = T0 + 2000 + starved_ms + RULES.unhealthy_after_ms - 1
    assert reconcile(state, {"a": deaf}, now_ms + 1, RULES)[1] == (Kill("a"),)


def test_the_status_has_phase_load_and_endpoint_of_an_instance() -> None:
    """The endpoint is present only while a process listens."""
    busy = replace(BUSY, finished=40)
    state, _ = reconcile(ready(wish()), {"a": busy}, T0 + 2000, RULES)
    record = observed_instances(state)[0]
    assert (record.phase, record.endpoint) == ("aggregated", "127.0.0.1:20001")
    assert (record.in_flight, record.finished) == (3, 40)
    unknown = ProcessObservation(alive=True)
    assert reconcile(state, {"a": unknown}, T0 + 2500, RULES)[0].instances[0].finished == 40
    state, _ = reconcile(state, {"a": DEAD}, T0 + 3000, RULES)
    gone = observed_instances(state)[0]
    assert (gone.endpoint, gone.finished) == ("", 0)


def test_an_expired_assignment_starts_no_new_instance_and_stops_none() -> None:
    """Instances that served before may restart. A later assignment allows new instances again."""
    late = want(2, wish("b", (1,)))
    state = accept(ready(wish()), late, T0 + 2000)
    state, commands = reconcile(state, {"a": UP}, T0 + 2000, RULES)
    assert (commands, [item.instance for item in state.instances]) == ((), ["a"])
    state, commands = reconcile(state, {"a": DEAD}, T0 + 3000, RULES)
    state, commands = reconcile(state, {}, T0 + 3000 + RULES.backoff_ms, RULES)
    assert commands == (Launch(wish(), "aggregated"),)
    assert accept(state, late, T0 + 90_000) == state, "a copy was not said again"
    state = accept(state, replace(late, said_ms=1), T0 + 90_000)
    state, commands = reconcile(state, {"a": UP}, T0 + 20_000, RULES)
    assert Launch(wish("b", (1,)), "aggregated") in commands
    assert state.instances[0].state is InstanceState.STOPPING


def test_a_drain_lasts_as_long_as_its_assignment_allows() -> None:
    """The time-out in the assignment replaces the default."""
    long = replace(want(2, wish(drain=True)), drain_timeout_ms=900_000)
    state = accept(ready(wish()), long)
    state, _ = reconcile(state, {"a": BUSY}, T0 + 2000, RULES)
    state, commands = reconcile(state, {"a": BUSY}, T0 + 2000 + 899_999, RULES)
    assert commands == ()
    assert reconcile(state, {"a": BUSY}, T0 + 902_000, RULES)[1] == (Terminate("a"),)


def test_sigkill_comes_after_the_stop_time_of_the_engine() -> None:
    """The engine declares this time."""
    rules = replace(RULES, stop_ms={"default": 70_000})
    state = accept(ready(wish()), want(2, wish(drain=True)))
    state, _ = reconcile(state, {"a": UP}, T0 + 2000, rules)
    assert state.instances[0].state is InstanceState.STOPPING
    state, commands = reconcile(state, {"a": SILENT}, T0 + 2000 + 69_999, rules)
    assert commands == ()
    assert reconcile(state, {"a": SILENT}, T0 + 72_000, rules)[1] == (Kill("a"),)


def test_gpus_held_by_an_unknown_process_get_no_launch() -> None:
    """An orphan process on the GPUs must end first."""
    state = accept(NodeState("n", "r/p/owned"), want(1, wish("a", (0,)), wish("b", (1,))))
    state, commands = reconcile(state, {}, T0, RULES, blocked_gpus={0})
    assert commands == (Launch(wish("b", (1,)), "aggregated"),)
    assert state.instances[0].reason == "waits for its GPUs"
    assert reconcile(state, {}, T0 + 100, RULES)[1] == (Launch(wish("a", (0,)), "aggregated"),)


def test_an_instance_that_waits_for_its_gpus_starts_in_the_latest_phase() -> None:
    """It has no process yet, so none must stop."""
    state, leaving = ready(wish("a")), {"a": BUSY}
    first = replace(wish("b"), phase="prefill")
    state, commands = reconcile(accept(state, want(2, first)), leaving, T0 + 2000, RULES)
    assert commands == ()
    second = replace(first, phase="decode")
    state, commands = reconcile(accept(state, want(3, second)), leaving, T0 + 3000, RULES)
    assert commands == () and state.instances[1].state is InstanceState.STARTING
    gone = {"a": ProcessObservation(alive=False)}
    state, commands = reconcile(state, gone, T0 + 4000, RULES)
    assert commands == (Launch(second, "decode"),)
