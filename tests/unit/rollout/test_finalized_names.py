"""Which names nothing uses any more, so that their keys may be deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.rollout.finalized_names import GIVEN_UP_MS, finalized_models, finalized_nodes
from tests.unit.decide.decide_catalogue import pool
from topics.fleet import Assignment, DesiredInstance, InstanceState, ObservedInstance, Status

NOW = 1_700_000_000_000
POOL = pool(nodes=1)
DECLARED, OLD = "us.l40s.on-demand.0", "us.l40s.on-demand.1"
WISH = DesiredInstance("a", "chat", "aggregated", "g", (0,))
EMPTY = Assignment(OLD, POOL.id, 3, 7, NOW)


def heard(*states: InstanceState, generation: int = 3, token: int = 7, at_ms: int = NOW) -> Status:
    seen = tuple(
        ObservedInstance(f"i{k}", "chat", "aggregated", "g", state, (0,))
        for k, state in enumerate(states)
    )
    return Status(OLD, POOL.id, "x", generation, at_ms, seen, observed_token=token)


def ended(assignment: Assignment, *statuses: Status, now_ms: int = NOW) -> tuple[str, ...]:
    return finalized_nodes(
        {assignment.node: assignment}, {one.node: one for one in statuses}, (POOL,), now_ms
    )


def test_a_node_without_instances_that_no_pool_declares_is_finalized() -> None:
    assert ended(EMPTY, heard()) == (OLD,)
    assert ended(EMPTY, heard(InstanceState.STOPPED, InstanceState.FAILED)) == (OLD,)
    assert ended(EMPTY, heard(token=0)) == (OLD,), "an older executor names no leader"
    assert ended(EMPTY, heard(generation=4)) == (OLD,)
    declared = replace(EMPTY, node=DECLARED)
    assert ended(declared, replace(heard(), node=DECLARED)) == ()


@pytest.mark.parametrize(
    "status",
    [
        heard(InstanceState.STOPPED, InstanceState.READY),
        heard(InstanceState.ASLEEP),
        heard(generation=2),
        heard(token=6),
    ],
    ids=["serves", "sleeps", "has not read it", "follows another leader"],
)
def test_a_node_is_in_use_until_its_executor_confirms_its_end_or_is_silent_for_a_day(
    status: Status,
) -> None:
    assert ended(EMPTY, status, now_ms=NOW + GIVEN_UP_MS - 1) == ()
    assert ended(EMPTY, status, now_ms=NOW + GIVEN_UP_MS) == (OLD,)


def test_a_node_that_never_reported_is_in_use_for_a_day_after_its_assignment() -> None:
    assert GIVEN_UP_MS == 24 * 3_600_000
    assert ended(EMPTY, now_ms=NOW + GIVEN_UP_MS - 1) == ()
    assert ended(EMPTY, now_ms=NOW + GIVEN_UP_MS) == (OLD,)


def test_a_node_with_assigned_instances_is_in_use() -> None:
    used = replace(EMPTY, instances=(WISH,))
    assert ended(used, heard(), now_ms=NOW + 10 * GIVEN_UP_MS) == ()


def test_nodes_are_listed_in_order() -> None:
    many = {name: replace(EMPTY, node=name) for name in ("c", "a", "b")}
    statuses = {name: replace(heard(), node=name) for name in many}
    assert finalized_nodes(many, statuses, (POOL,), NOW) == ("a", "b", "c")


def test_undeclared_models_end_with_their_last_group_and_file() -> None:
    names = ("a", "b", "c")
    assert finalized_models(names, {"a"}, {"b"}) == ("c",)
    assert finalized_models(names, (), ()) == names
