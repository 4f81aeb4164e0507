"""Instances over several nodes: all ranks are placed, assigned, routed, drained and replaced
together."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Market
from autoscaler.domain.combo import Combo, ComboMember
from autoscaler.domain.workload import Lengths, Phase, Slo
from autoscaler.rollout.assignments import changed_assignments, route_groups
from autoscaler.rollout.bin_packing import place
from autoscaler.rollout.capacity_and_cost import nodes_of
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.launch_failures import detect_faults
from autoscaler.rollout.multi_node import met
from autoscaler.rollout.serving_group import (
    FleetView,
    GroupView,
    Life,
    ServingGroup,
    observe_group,
    ready_req_per_s,
)
from autoscaler.rollout.waves import RemovalLimits, WaveInputs, step
from autoscaler.tick.restore import restore
from tests.unit.planning.planning_clusters import pool, service
from topics.codec import decode, encode
from topics.fleet import Assignment, InstanceState, ObservedInstance, Status
from topics.instance_ranks import GangStage

NOW = 1_000_000
POOL = pool("us", "l40s", "L40S", 1, 6, Market.ON_DEMAND, 1.9)
CLUSTER = Cluster(
    (POOL,), (service("big", "Qwen/Qwen3-32B", Slo(8000.0, 200.0), pipelines="same-slice"),)
)
MEMBERS = tuple(ComboMember(Phase.AGGREGATED, POOL.id, 1, 1, 4.0, stage, 32) for stage in (1, 2))
COMBO = Combo(
    f"big:a1.32@{POOL.id}>a1.32@{POOL.id}", "big", "us", MEMBERS, 4.0, 3.8, 500.0, 50.0, 90.0
)
READY, STARTING = InstanceState.READY, InstanceState.STARTING


def group(**changes: object) -> ServingGroup:
    found = place(COMBO, 7, CLUSTER, {}, {})
    assert found is not None
    made = ServingGroup(f"{COMBO.id}:7", "big", COMBO.id, "default", found[0], NOW - 1000)
    return replace(made, **changes)  # type: ignore[arg-type]


def fleet(one: ServingGroup, *states: InstanceState | None, at_ms: int = NOW) -> FleetView:
    """Statuses of all executors: each reports its rank, and rank 0 also its rendezvous."""
    statuses, instances = {}, {}
    for placed, state in zip(one.placed, states, strict=True):
        gang = placed.gang
        assert gang is not None
        seen: tuple[ObservedInstance, ...] = ()
        if state is not None:
            told = replace(gang, rendezvous="h0:20002") if gang.leads else gang
            seen = (
                ObservedInstance(
                    placed.instance, "big", "aggregated", one.name, state, placed.gpus,
                    "h0:20001" if gang.leads else "", gang=told,
                ),
            )  # fmt: skip
        status = Status(placed.node, placed.pool, "ex", 9, at_ms, seen)
        statuses[placed.node] = status
        instances.update({item.instance: item for item in seen})
    return FleetView(instances, statuses)


def group_view(one: ServingGroup, view: FleetView) -> GroupView:
    return observe_group(one, view, NOW, 600_000, 15_000)


def assignments_of(one: ServingGroup) -> dict[str, Assignment]:
    return {a.node: a for a in changed_assignments([one], {}, 1, NOW)}


def wave(
    one: ServingGroup, view: FleetView, assignments: dict[str, Assignment]
) -> tuple[ServingGroup, ...]:
    views = {one.name: group_view(one, view)}
    made = WaveInputs(NOW, RemovalLimits(), {one.name: 0.0}, views, (), view, assignments, 120_000)
    return step([one], made)


def test_a_pipeline_is_one_rank_on_each_node() -> None:
    """Two nodes run the two ranks of one gang, named after rank 0. Each rank has its stages."""
    first, second = group().placed
    assert first.node != second.node
    assert first.gang is not None
    assert second.gang is not None
    assert (first.gang.rank, second.gang.rank) == (0, 1)
    assert first.gang.gang == second.gang.gang == first.instance
    assert first.gang.stages == (GangStage("L40S", 1, 32), GangStage("L40S", 1, 32))
    assert len(nodes_of([group()])) == 2


def test_two_pipelines_of_one_combo_are_two_gangs() -> None:
    """Each slice of a stage belongs to one gang."""
    twice = replace(COMBO, members=tuple(replace(m, count=2) for m in MEMBERS))
    found = place(twice, 7, CLUSTER, {}, {})
    assert found is not None
    gangs = [p.gang for p in found[0]]
    assert sorted((g.gang, g.rank) for g in gangs if g) == sorted(
        (leader, rank) for leader in {g.gang for g in gangs if g} for rank in (0, 1)
    )
    assert len({p.node for p in found[0]}) == 4


def test_an_assignment_with_ranks_survives_the_wire_format() -> None:
    """The decoded record has the group name of the pipeline with its arrow, and the rank with its
    stages.
    """
    for assignment in assignments_of(group()).values():
        assert decode("assignments", encode(assignment)) == assignment


def test_other_ranks_get_the_rendezvous_of_rank_0() -> None:
    """Their assignments contain it once the executor of rank 0 has reported it."""
    one = group()
    assert all(
        i.gang and not i.gang.rendezvous for a in assignments_of(one).values() for i in a.instances
    )
    assert met(one, fleet(one, None, None)) == one
    (after,) = wave(one, fleet(one, STARTING, STARTING), assignments_of(one))
    assert {p.gang.rendezvous for p in after.placed if p.gang} == {"h0:20002"}
    assert all(
        i.gang and i.gang.rendezvous == "h0:20002"
        for a in assignments_of(after).values()
        for i in a.instances
    )


def test_a_gang_serves_when_every_rank_is_ready_and_counts_once() -> None:
    """Rank 0 alone provides no capacity. Both ranks together provide one endpoint and one rate."""
    one = group()
    assert group_view(one, fleet(one, READY, None)).ready == ()
    assert group_view(one, fleet(one, STARTING, READY)).ready == ()
    view = group_view(one, fleet(one, READY, READY))
    assert [(p.instance, at) for p, at in view.ready] == [(one.placed[0].instance, "h0:20001")]
    assert view.all_ready
    assert ready_req_per_s(COMBO, view) == 4.0
    (route,) = route_groups([one], {one.name: view}, {COMBO.id: COMBO}, Lengths(500.0, 100.0))
    assert [end.address for end in route.aggregated] == ["h0:20001"]
    assert route.weight == 4.0


def test_a_lost_rank_ends_the_gang_and_its_node_backs_off() -> None:
    """All ranks stop at once, because the remaining ranks cannot finish any request."""
    one = group(created_ms=NOW - 60_000)
    view = fleet(one, READY, InstanceState.FAILED)
    sight = FleetSnapshot(view, {one.name: group_view(one, view)}, *(frozenset(),) * 4)
    faults = detect_faults([one], sight, {}, (), NOW)
    assert [f.node for f in faults.failures] == [one.placed[1].node]
    (after,) = wave(faults.groups[0], view, assignments_of(one))
    assert after.life is Life.DRAINING
    wishes = [i for a in assignments_of(after).values() for i in a.instances]
    assert all(i.drain and i.gang and i.gang.broken for i in wishes)


def test_a_gang_with_a_silent_node_ends_once_rank_0_fails() -> None:
    """While rank 0 serves, the silent node may only be cut off from the controller."""
    one = group(created_ms=NOW - 60_000)
    for state, lost, failed in ((READY, 1, 0), (InstanceState.FAILED, 0, 1)):
        view = fleet(one, state, READY)
        node = one.placed[1].node
        view.statuses[node] = replace(view.statuses[node], at_ms=NOW - 60_000)  # type: ignore[index]
        sight = FleetSnapshot(view, {one.name: group_view(one, view)}, *(frozenset(),) * 4)
        faults = detect_faults([one], sight, {}, (), NOW)
        assert (len(faults.lost), len(faults.failures)) == (lost, failed)


def test_rank_0_drains_before_the_other_ranks() -> None:
    """Rank 0 has the requests. The other ranks drain after it has ended. Then the group is gone."""
    one = group(life=Life.DRAINING, since_ms=NOW)
    first = assignments_of(one)
    assert [i.drain for a in first.values() for i in a.instances] == [True, False]
    (same,) = wave(one, fleet(one, InstanceState.DRAINING, READY), first)
    assert same.placed == one.placed
    (after,) = wave(one, fleet(one, InstanceState.STOPPED, READY), first)
    assert [p.gang.rank for p in after.placed if p.gang] == [1]
    second = assignments_of(after)
    assert [i.drain for a in second.values() for i in a.instances] == [True]
    assert wave(after, fleet(one, None, InstanceState.STOPPED), second) == ()


def test_a_rank_lost_in_a_drain_ends_the_rest_at_once() -> None:
    """Otherwise requests of rank 0 would hang until the drain deadline."""
    one = group(life=Life.DRAINING, since_ms=NOW)
    (after,) = wave(
        one, fleet(one, InstanceState.DRAINING, InstanceState.FAILED), assignments_of(one)
    )
    assert [(p.gang.rank, p.gang.broken) for p in after.placed if p.gang] == [(0, True)]


def test_a_restarted_controller_rebuilds_the_gang() -> None:
    """Ranks, stages and rendezvous come from assignments alone. A drain that
    has begun continues.
    """
    one = group(placed=met(group(), fleet(group(), STARTING, None)).placed)
    state = restore(CLUSTER, assignments_of(one), {}, {}, (), NOW)
    (found,) = state.groups
    assert found.placed == one.placed
    assert found.life is Life.ACTIVE
    last = replace(one, life=Life.DRAINING, placed=one.placed[1:])
    (found,) = restore(CLUSTER, assignments_of(last), {}, {}, (), NOW).groups
    assert found.life is Life.DRAINING
    assert [i.drain for a in assignments_of(found).values() for i in a.instances] == [True]
