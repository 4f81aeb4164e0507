"""Modes that do not act, and controller restarts at any moment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Mode, Policy
from autoscaler.state.effects import PublishDecision, PublishLedger, SolveRequested
from tests.unit.decide.decide_catalogue import (
    AGGREGATED,
    DECODE,
    PREFILL,
    combo,
    combos,
    pool,
    service,
)
from tests.unit.decide.decide_world import World, reused, world

ONE = pool(nodes=40, per_node=1, usd=2.0)
QUIET = service(mode=Mode.RECOMMEND)
SHRINKING_S = (970, 990, 1010, 1060, 1100, 1110)


def recommended(w: World) -> int:
    return sum(count for _, count in w.state.models["chat"].advisory.recommended)


def test_each_change_of_demand_gets_one_recommendation() -> None:
    """Load is 5, then 30, then 5 req/s. Each recommendation is based on the last recommended fleet,
    not on an empty one.
    """
    w = world(lambda _m, t: 30.0 if 400 <= t < 1200 else 5.0, QUIET, pools=(ONE,)).run(390)
    assert [dict(d.change) for d in w.decisions] == [{"chat:a1@us/l40s/on-demand": 1}]
    w.run(100)
    assert recommended(w) == 4
    count = len(w.decisions)
    w.run(700)
    assert len(w.decisions) == count  # stated once
    w.run(900)
    assert recommended(w) == 1
    assert sum(n for d in w.decisions for _, n in d.change) == 1
    assert {d.applied for d in w.decisions} == {False}


@pytest.mark.parametrize("mode", [Mode.RECOMMEND, Mode.APPROVE])
def test_modes_that_do_not_act_have_no_effects(mode: Mode) -> None:
    """During an hour of load, faults, prices, alerts and a restart, the only effects are decisions
    and requests to the planner.
    """
    w = world(
        lambda _m, t: 5.0 if (t // 400) % 2 else 40.0,
        service(mode=mode, min_instances=2),
        pools=(ONE,),
        seed=2,
    ).run(1700)
    w.restart_controller()
    w.run(700)
    assert {type(e) for e in w.effects} <= {PublishDecision, PublishLedger, SolveRequested}
    assert w.applied == {} and w.routes == {} and w.plans == []
    assert not any(d.applied for d in w.decisions if d.model != "*")


def test_a_model_that_enters_mode_act_gets_the_recommended_fleet() -> None:
    w = world(30.0, QUIET, pools=(ONE,)).run(200)
    assert w.assigned_count("chat") == 0
    before = recommended(w)
    w.cluster = replace(w.cluster, services=(service(),))
    w.run(100)
    assert w.ready("chat") == before == 4


def restarted_at(second: int) -> World:
    """A world with 5, then 45, then 5 req/s. The controller restarts at `second`."""
    w = world(lambda _m, t: 45.0 if 200 <= t < 500 else 5.0, pools=(ONE,), full_s=5).run(second)
    w.restart_controller()
    return w


@pytest.mark.parametrize("second", [1, 2, 30, 201, 202, 230, 262, 400])
def test_a_restart_at_any_moment_ends_with_the_same_fleet(second: int) -> None:
    """The restart comes during the first start, during the surge, during a solve, or after its
    answer.
    """
    w = restarted_at(second).run(480 - second)
    assert w.ready("chat") == 6  # 45 / 0.8 = 56.25 req/s raw
    instances = [i.instance for a in w.applied.values() for i in a.instances]
    assert len(instances) == len(set(instances))


def desired(w: World) -> set[tuple[str, str, str]]:
    """Instances that shall run, with their groups and engines."""
    return {
        (i.instance, i.group, i.engine)
        for a in w.applied.values()
        for i in a.instances
        if not i.drain
    }


@pytest.mark.parametrize("engine", ["default", "vllm-fork"])
def test_a_controller_that_lost_the_topics_continues_with_the_running_fleet(engine: str) -> None:
    """One instance still starts at the restart."""
    w = world(lambda _m, t: 45.0 if t < 250 else 55.0, service(engine=engine), pools=(ONE,))
    w.run(280)
    fleet, ready = desired(w), w.ready("chat")
    assert (len(fleet), ready) == (7, 6)
    w.restart_controller(lost=True)

    def check(w: World) -> None:
        assert desired(w) == fleet
        assert w.ready("chat") >= ready

    w.run(200, check)
    assert w.ready("chat") == 7
    assert w.state.numbers.group > 7


def test_a_controller_that_lost_the_topics_drains_a_group_without_a_member() -> None:
    """A prefill instance alone serves no requests."""
    split = pool(nodes=4, per_node=1, usd=2.0)
    one = combo("chat", [(PREFILL, 1, split, 1, 20.0), (DECODE, 1, split, 1, 20.0)])
    w = world(5.0, pools=(split,), catalogue={"chat": combos(one)}).run(120)
    assert w.ready("chat") == 2
    left = next(a for a in w.applied.values() if a.instances[0].phase == "decode")
    del w.applied[left.node], w.statuses[left.node]
    first = {name for name, _, _ in desired(w)}
    w.restart_controller(lost=True)
    w.run(120)
    assert w.ready("chat") == 2
    assert not first & {name for name, _, _ in desired(w)}


@reused
def shrinking(second: int) -> World:
    """A world at `second` whose load falls from 45 to 5 req/s."""
    if second > 970:
        before = max(one for one in SHRINKING_S if one < second)
        return shrinking(before).run(second - before)
    return world(lambda _m, t: 45.0 if t < 500 else 5.0, pools=(ONE,), full_s=5).run(second)


@pytest.mark.parametrize("second", SHRINKING_S)
def test_a_restart_during_scale_in_removes_no_needed_capacity(second: int) -> None:
    """The restart comes before the plan, during the solve, or during drains. Capacity covers demand
    all the time.
    """
    w = shrinking(second)
    w.restart_controller()

    def check(w: World) -> None:
        assert w.ready("chat") * 10.0 * 0.8 >= 5.0
        assert w.assigned_count("chat") <= 6

    w.run(470, check)
    assert w.ready("chat") == 1


def test_drains_continue_after_a_restart_and_no_other_instance_leaves() -> None:
    """Five of six instances are surplus and drain for minutes. The restarted controller keeps the
    sixth and revokes no drain.
    """
    w = world(
        lambda _m, t: 45.0 if t < 500 else 5.0,
        service(max_disruption=0.1, scale_in_after_s=60.0),
        pools=(ONE,),
        policy=Policy(drain_timeout_s=900.0),
    ).run(500)
    w.busy = {"chat"}

    def drains() -> int:
        return sum(i.drain for a in w.applied.values() for i in a.instances)

    while drains() < 5:
        w.run(1)
    w.restart_controller()
    seen = set()
    for _ in range(400):
        w.run(1)
        seen.add(drains())
    assert seen == {5} and w.ready("chat") == 1
    w.busy = set()
    w.run(600)
    assert w.ready("chat") == 1


def test_a_restart_does_not_change_the_routes() -> None:
    """Two combos differ in capacity. Their weights and slots stay until the controller calculates
    them again.
    """
    first, second = pool("one", nodes=1, per_node=1), pool("two", nodes=4, per_node=1, usd=90.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(AGGREGATED, 1, first, 1, 10.0)]),
            combo("chat", [(AGGREGATED, 1, second, 1, 25.0)]),
        )
    }
    w = world(26.0, pools=(first, second), catalogue=catalogue).run(200)
    before = w.routes["chat"].groups
    assert sorted(group.weight for group in before) == [10.0, 25.0]
    w.restart_controller()
    for _ in range(5):
        w.run(1)
        assert w.routes["chat"].groups == before and w.routes["chat"].leader_token == 2


def test_a_node_lost_during_a_restart_is_replaced() -> None:
    """Capacity that a new leader takes over counts as needed."""
    w = world(30.0, pools=(ONE,)).run(300)
    w.restart_controller()
    w.run(5)
    w.cut.add(min(w.rented(ONE.id)))
    w.run(130)
    up = [g for g in w.state.groups if g.counts and g.placed[0].node not in w.cut]
    assert len(up) == 4


def pair_world(seconds: int) -> World:
    """A world whose prefill and decode instances are on separate nodes."""
    first, second = pool("pre", per_node=1), pool("dec", per_node=2)
    pair = combo("chat", [(PREFILL, 1, first, 1, 12.0), (DECODE, 2, second, 1, 12.0)])
    return world(8.0, pools=(first, second), catalogue={"chat": combos(pair)}, full_s=5).run(
        seconds
    )


@pytest.mark.parametrize("pool_name", ["pre", "dec"])
def test_a_lost_assignment_of_a_running_pair_is_written_again(pool_name: str) -> None:
    """The executor still runs the pair of the lost assignment. The leader publishes the assignment
    again and starts no other instance.
    """
    w = pair_world(200)
    before = w.routes["chat"].groups
    (node,) = [n for n, a in w.applied.items() if f"/{pool_name}/" in a.pool]
    lost = w.applied.pop(node)
    w.restart_controller()
    w.run(5)
    assert [i.instance for i in w.applied[node].instances] == [i.instance for i in lost.instances]
    assert w.routes["chat"].groups == before


def test_half_a_pair_is_no_capacity_and_is_replaced() -> None:
    """The assignment and the node of one half are gone. The other half drains, and a whole pair is
    placed.
    """
    w = pair_world(200)
    (node,) = [n for n, a in w.applied.items() if "/dec/" in a.pool]
    del w.applied[node], w.statuses[node]
    w.restart_controller()
    w.run(150)
    groups = [g for g in w.state.groups if g.counts]
    assert [len(g.placed) for g in groups] == [2]
    assert w.ready("chat") == 2 and w.routed_req_per_s("chat") == 12.0
