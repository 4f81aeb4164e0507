"""Ranks of an instance over several nodes, as the executor of one node handles them."""

from __future__ import annotations

from dataclasses import replace

from executors.node.node_state import Kill, Launch, NodeState, ProcessObservation, Rules, Terminate
from executors.node.reconcile import accept, observed_instances, reconcile, record_launch
from topics.fleet import Assignment, DesiredInstance, InstanceState
from topics.instance_ranks import GangRank, GangStage

RULES = Rules()
T0 = 1_000_000
UP = ProcessObservation(alive=True, healthy=True, in_flight=0, probed_ms=10**9)
DEAD = ProcessObservation(alive=False, end_reason="exit code 1")
STAGES = (GangStage("L40S", 1, 40), GangStage("L40S", 1, 24))


def wish(rank: int, rendezvous: str = "", **changes: object) -> DesiredInstance:
    gang = GangRank("m-1-a0", rank, STAGES, rendezvous)
    made = DesiredInstance(f"m-1-a{rank}", "m", "aggregated", "m:a1.40@p>a1.24@p:1", (0,),
                           gang=gang)  # fmt: skip
    return replace(made, **changes)  # type: ignore[arg-type]


def assigned(state: NodeState, generation: int, *wishes: DesiredInstance) -> NodeState:
    return accept(state, Assignment("n", "r/p/owned", generation, 1, 0, wishes))


def begun(item: DesiredInstance) -> NodeState:
    gang, first = item.gang, item
    if gang is not None and gang.leads:
        first = replace(item, gang=replace(gang, rendezvous=""))
    state, commands = reconcile(assigned(NodeState("n", "r/p/owned"), 1, first), {}, T0, RULES)
    assert commands == (Launch(first, "aggregated"),)
    ports = (20001, 20002) if item.gang and item.gang.leads else (20001,)
    endpoint = "10.0.0.1:20001" if item.gang and item.gang.leads else ""
    return record_launch(state, item.instance, endpoint, ports)


def test_rank_0_starts_and_reports_its_rendezvous() -> None:
    """The last port of rank 0 is the rendezvous; its endpoint is the address for requests."""
    (seen,) = observed_instances(begun(wish(0)))
    assert seen.endpoint == "10.0.0.1:20001"
    assert seen.gang == replace(GangRank("m-1-a0", 0, STAGES), rendezvous="10.0.0.1:20002")


def test_other_ranks_wait_for_the_rendezvous() -> None:
    """Each starts once when the rendezvous is known. A repeated rendezvous changes nothing."""
    state, commands = reconcile(assigned(NodeState("n", "r/p/owned"), 1, wish(1)), {}, T0, RULES)
    assert commands == ()
    assert observed_instances(state)[0].reason == "waits for rank 0"
    known = wish(1, "10.0.0.1:20002")
    state, commands = reconcile(assigned(state, 2, known), {}, T0 + 1000, RULES)
    assert commands == (Launch(known, "aggregated"),)
    state, commands = reconcile(assigned(state, 3, known), {known.instance: UP}, T0 + 2000, RULES)
    assert commands == ()
    assert observed_instances(state)[0].state is InstanceState.READY
    assert observed_instances(state)[0].endpoint == ""


def test_rank_0_is_not_restarted_alone_on_a_node_without_state() -> None:
    """The rendezvous of the gang proves that rank 0 was started before the node lost its state."""
    item = wish(0, "10.0.0.1:20002")
    state, commands = reconcile(assigned(NodeState("n", "r/p/owned"), 7, item), {}, T0, RULES)
    assert commands == ()
    assert state.instances[0].state is InstanceState.FAILED
    assert state.instances[0].reason == "its process on this node is gone"


def test_an_ended_rank_is_not_restarted_alone() -> None:
    """The other ranks cannot continue with a new process, however long they have served."""
    for rank in (0, 1):
        item = wish(rank, "10.0.0.1:20002")
        state, _ = reconcile(begun(item), {item.instance: UP}, T0 + 1000, RULES)
        late = T0 + 2 * RULES.stable_ms
        state, commands = reconcile(state, {item.instance: DEAD}, late, RULES)
        assert commands == ()
        assert state.instances[0].state is InstanceState.FAILED
        assert state.instances[0].reason == f"rank {rank} of 2: exit code 1"


def test_the_remaining_ranks_of_a_broken_gang_are_killed_at_once() -> None:
    """A remaining rank hangs, so its requests in flight cannot finish."""
    item = wish(0)
    busy = ProcessObservation(alive=True, healthy=True, in_flight=3, probed_ms=10**9)
    state, _ = reconcile(begun(item), {item.instance: busy}, T0 + 1000, RULES)
    assert item.gang is not None
    gone = replace(item, drain=True, gang=replace(item.gang, broken=True))
    state, commands = reconcile(assigned(state, 2, gone), {item.instance: busy}, T0 + 2000, RULES)
    assert commands == (Kill(item.instance),)
    state, commands = reconcile(state, {item.instance: DEAD}, T0 + 2100, RULES)
    assert commands == ()
    assert state.instances[0].state is InstanceState.STOPPED


def test_rank_0_drains_and_other_ranks_have_no_requests() -> None:
    """Rank 0 gets SIGTERM once no request is in flight."""
    for rank in (0, 1):
        item = wish(rank, "10.0.0.1:20002")
        state, _ = reconcile(begun(item), {item.instance: UP}, T0 + 1000, RULES)
        asked = assigned(state, 2, replace(item, drain=True))
        _, commands = reconcile(asked, {item.instance: UP}, T0 + 2000, RULES)
        assert commands == (Terminate(item.instance),)
