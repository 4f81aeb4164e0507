"""Engines with their own addresses, and launches that no further attempt can repair."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executors.node.node_state import InstanceRecord, NodeState, ProcessObservation, Rules
from executors.node.reconcile import observed_instances, reconcile
from topics.checks import InvalidValue
from topics.fleet import DesiredInstance, InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangRank, GangStage

WISH = DesiredInstance("a", "m", "aggregated", "g", (0,))
STARTING = InstanceRecord(WISH, InstanceState.STARTING, 0, "aggregated", has_process=True)


def step(item: InstanceRecord, seen: ProcessObservation) -> InstanceRecord:
    state = NodeState("n", "p", instances=(item,))
    after, _ = reconcile(state, {"a": seen}, 1000, Rules())
    return after.instances[0]


def test_an_address_that_becomes_known_after_the_launch_is_published() -> None:
    after = step(STARTING, ProcessObservation(alive=True, endpoint="10.1.2.3:8000"))
    assert (
        observed_instances(NodeState("n", "p", instances=(after,)))[0].endpoint == "10.1.2.3:8000"
    )


def test_a_hopeless_launch_is_given_up_at_once_with_its_reason() -> None:
    seen = ProcessObservation(alive=False, end_reason="no node: 0/3 nodes", hopeless=True)
    after = step(STARTING, seen)
    assert after.state is InstanceState.FAILED
    assert after.reason == "no node: 0/3 nodes"


def test_another_failed_launch_is_tried_again() -> None:
    after = step(STARTING, ProcessObservation(alive=False, end_reason="exit code 1"))
    assert after.state is InstanceState.STARTING
    assert after.retry_ms > 1000


def test_rank_0_without_an_address_publishes_no_rendezvous() -> None:
    stages = (GangStage("L4", 1, 8), GangStage("L4", 1, 8))
    wish = replace(WISH, gang=GangRank("a", 0, stages))
    item = replace(STARTING, desired=wish, ports=(8000, 8001))
    assert observed_instances(NodeState("n", "p", instances=(item,)))[0].gang == wish.gang
    known = replace(item, endpoint="10.1.2.3:8000")
    gang = observed_instances(NodeState("n", "p", instances=(known,)))[0].gang
    assert gang is not None and gang.rendezvous == "10.1.2.3:8001"


def test_a_node_names_the_addresses_of_its_pods() -> None:
    seen = [
        ObservedInstance(
            f"i{n}", "m", "aggregated", "g", InstanceState.READY, (n,), f"10.0.0.{n}:1"
        )
        for n in (1, 2)
    ]
    status = Status("n", "p", "ex", 1, 0, tuple(seen), address="10.9.9.9",
                    addresses=("10.0.0.1", "10.0.0.2"))  # fmt: skip
    assert len(status.instances) == 2
    with pytest.raises(InvalidValue, match=r"instances\[1\].endpoint"):
        replace(status, addresses=("10.0.0.1",))
    with pytest.raises(InvalidValue, match="at most 64"):
        replace(status, addresses=tuple(f"10.1.0.{n}" for n in range(65)))
