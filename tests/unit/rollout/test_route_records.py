"""Routes and assignments of groups without an evaluation, of withdrawn names and of switches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import ComboMember
from autoscaler.domain.workload import Phase, Slo
from autoscaler.rollout.assignments import (
    changed_assignments,
    changed_nodes,
    changed_routes,
    marked,
    route_groups,
    without_groups,
)
from autoscaler.rollout.bin_packing import place
from autoscaler.rollout.diff import FreeCapacity, start
from autoscaler.rollout.serving_group import (
    GroupView,
    Life,
    Placed,
    RouteExit,
    Switch,
    ready_req_per_s,
)
from autoscaler.rollout.waves import retire, step
from tests.unit.decide.decide_catalogue import AGGREGATED, BUCKET, combo, pool, service
from tests.unit.rollout.test_assignments import GROUP, NODE, PAIR, PLACED, WHERE, view
from tests.unit.rollout.test_waves import NOW, group, inputs, lives
from topics.routing import Endpoint, RouteGroup, Routes, TypeRoute

ROUTE = RouteGroup(GROUP.name, 7.0, (), (Endpoint("p", "h:1"),), (Endpoint("d", "h:2"),))


def routes(**changes: Any) -> Routes:
    made = changed_routes(service(), (ROUTE,), None, 3, 10, start_s=60.0, feeds=("f",))
    assert made is not None
    return replace(made, **changes)


def test_a_group_without_an_evaluation_keeps_its_published_weight_and_slots() -> None:
    """After a restart, until the planner has answered."""
    (new,) = route_groups([GROUP], view(0, 1, 2), {}, BUCKET)
    assert new.weight == 1.0 and {end.slots for end in (*new.prefill, *new.decode)} == {0}
    (known,) = route_groups([GROUP], view(0, 1, 2), {PAIR.id: PAIR}, BUCKET)
    published = routes(groups=(replace(known, weight=7.0),))
    (kept,) = route_groups([GROUP], view(0, 1, 2), {}, BUCKET, published)
    assert kept == replace(known, weight=7.0)


@pytest.mark.parametrize(("rate", "weight"), [(1e-9, 1e-6), (1.234567, 1.2346)])
def test_a_weight_is_above_0_and_has_five_digits(rate: float, weight: float) -> None:
    one = combo("chat", [(AGGREGATED, 1, WHERE, 1, rate)])
    placed = (Placed("i", AGGREGATED, NODE, WHERE.id, (5,)),)
    alone = replace(GROUP, placed=placed, combo_id=one.id)
    views = {alone.name: GroupView(((placed[0], "h:1"),), True, None, False)}
    (route,) = route_groups([alone], views, {one.id: one}, BUCKET)
    assert route.weight == weight


def test_every_part_of_the_routes_is_compared() -> None:
    same: dict[str, Any] = {"start_s": 60.0, "feeds": ("f",)}
    kept = routes()
    assert changed_routes(service(), (ROUTE,), kept, 3, 20, **same) is None
    kinds = (TypeRoute("long", 9.0, 9.0, (1.0,)),)
    for changed in (
        changed_routes(service(), (), kept, 3, 20, **same),
        changed_routes(service(), (ROUTE,), kept, 4, 20, **same),
        changed_routes(service(slo=Slo(1001.0, 50.0)), (ROUTE,), kept, 3, 20, **same),
        changed_routes(service(slo=Slo(1000.0, 51.0)), (ROUTE,), kept, 3, 20, **same),
        changed_routes(service(), (ROUTE,), kept, 3, 20, **{**same, "start_s": 90.0}),
        changed_routes(service(), (ROUTE,), kept, 3, 20, **{**same, "feeds": ()}),
        changed_routes(service(), (ROUTE,), kept, 3, 20, **same, types=kinds),
        changed_routes(service(), (ROUTE,), replace(kept, advised=True), 3, 20, **same),
        changed_routes(service(), (ROUTE,), replace(kept, withdrawn=True), 3, 20, **same),
        changed_routes(service(), (ROUTE,), replace(kept, aliases=("x",)), 3, 20, **same),
        changed_routes(service(), (ROUTE,), replace(kept, adapters=("x",)), 3, 20, **same),
    ):
        assert changed is not None and changed.generation == 2 and changed.issued_ms == 20


def test_a_withdrawn_name_has_no_groups_and_a_declared_one_is_not_withdrawn() -> None:
    kept = routes(said_ms=5, valid_ms=6, signature="s", adapters=("x",))
    gone = without_groups(kept, 9, 30)
    assert (gone.generation, gone.leader_token, gone.issued_ms) == (2, 9, 30)
    assert (gone.groups, gone.types, gone.feeds, gone.adapters) == ((), (), (), ())
    assert gone.withdrawn and gone.split is None
    assert (gone.said_ms, gone.valid_ms, gone.signature) == (0, 0, "")
    advised = marked(gone, True, 9, 40)
    assert advised.advised and not advised.withdrawn and advised.generation == 3
    assert not marked(advised, False, 9, 50).advised


def test_a_node_gets_the_longest_drain_of_its_present_and_former_models() -> None:
    times = {"chat": 100, "code": 300}
    (first,) = changed_assignments([GROUP], {}, 5, 10, times)
    assert (first.drain_timeout_ms, first.issued_ms) == (100, 10)
    other = replace(GROUP, model="code")
    (both,) = changed_assignments([other], {NODE: first}, 5, 20, times)
    assert both.drain_timeout_ms == 300
    (last,) = changed_assignments([], {NODE: both}, 5, 30, times)
    assert last.drain_timeout_ms == 300
    (unknown,) = changed_assignments([], {NODE: both}, 5, 30, {"chat": 50})
    assert unknown.drain_timeout_ms == 300, "the model is no longer declared"
    (plain,) = changed_assignments([GROUP], {}, 5, 10)
    assert plain.drain_timeout_ms == 0


def test_a_group_that_waits_for_gpus_is_in_no_assignment() -> None:
    assert changed_assignments([replace(GROUP, replaces="old")], {}, 5, 10) == ()
    parts = replace(GROUP, placed=(replace(PLACED[0], instance="chat-1-c0+vision"),))
    (made,) = changed_assignments([parts], {}, 5, 10)
    assert [one.engine for one in made.instances] == ["chat.vision"]


def test_a_switch_changes_the_nodes_of_both_placements() -> None:
    there = replace(PLACED[0], node="else")
    held = replace(GROUP, switch=Switch("old", (there,)))
    assert changed_nodes((GROUP,), (held,)) == {NODE, "else"}
    assert changed_nodes((held,), (GROUP,)) == {NODE, "else"}


def test_a_cell_is_limited_by_the_deployment_with_the_least_ready_share() -> None:
    members = (
        ComboMember(AGGREGATED, WHERE.id, 1, 2, 9.0, deployment="a"),
        ComboMember(AGGREGATED, WHERE.id, 1, 4, 9.0, deployment="b"),
    )
    cell = replace(PAIR, members=members, req_per_s=8.0, paths=("any",))  # type: ignore[arg-type]

    def rate(a: int, b: int) -> float:
        up = [Placed(f"a{n}+a", AGGREGATED, NODE, WHERE.id, (n,)) for n in range(a)]
        up += [Placed(f"b{n}+b", AGGREGATED, NODE, WHERE.id, (n,)) for n in range(b)]
        return ready_req_per_s(cell, GroupView(tuple((p, "h") for p in up), True, None, False))

    assert (rate(2, 4), rate(1, 4), rate(2, 1), rate(0, 4)) == (8.0, 4.0, 2.0, 0.0)


def test_the_group_itself_is_not_among_those_that_must_stay() -> None:
    groups = [group(1), group(2), retire(group(3), NOW)]
    for ready, floor, life in (
        ({1, 2, 3}, 2, Life.UNROUTED),
        ({1, 3}, 2, Life.RETIRING),
        ({1, 2, 3}, 3, Life.RETIRING),
    ):
        assert lives(step(groups, inputs(groups, ready, 0.0, floor=floor)))[2] is life


def test_half_of_a_reclaim_notice_is_left_for_running_requests() -> None:
    leaving = retire(group(1), NOW - 1000)
    for taken_ms, life in ((NOW + 1000, Life.UNROUTED), (NOW + 1001, Life.RETIRING)):
        given = inputs([leaving], {1}, 99.0, reclaim_ms={leaving.name: taken_ms})
        assert lives(step([leaving], given)) == [life]


def test_a_switching_group_is_replaced_by_its_next_state() -> None:
    held = group(1, switch=Switch("chat:a1@us/p/owned:9", group(1).placed, asked=True))
    (done,) = step([held], inputs([held], {1}, 1.0))
    assert done.switch is None and done.name == held.name
    (waits,) = step([held], inputs([held], set(), 1.0))
    assert waits == held


def test_removal_limits_allow_a_rounding_error() -> None:
    groups = [group(1), retire(group(2), NOW, yields=True)]
    for demand, life in ((10.0 + 5e-10, Life.UNROUTED), (10.0 + 1e-6, Life.RETIRING)):
        assert lives(step(groups, inputs(groups, {1, 2}, demand)))[1] is life
    left = retire(group(3), NOW)
    assert left.exit == RouteExit() and left.since_ms == NOW


def test_small_blocks_on_paid_nodes_come_first_and_shut_nodes_get_nothing() -> None:
    small = pool(per_node=4, nodes=3)
    one = combo("chat", [(AGGREGATED, 1, small, 1, 1.0)])
    nodes = [f"us.l40s.on-demand.{k}" for k in range(3)]

    def spot(used: dict[str, frozenset[int]], shut: tuple[str, ...] = (), new: int = 9) -> Any:
        found = place(one, 1, Cluster((small,), ()), used, {small.id: new}, shut)
        return found and (found[0][0].node, found[0][0].gpus)

    half, most = frozenset({0, 1}), frozenset({0, 1, 3})
    assert spot({nodes[0]: half, nodes[1]: most}) == (nodes[1], (2,))
    assert spot({nodes[0]: half, nodes[1]: most}, (nodes[1],)) == (nodes[0], (2,))
    assert spot({}) == (nodes[0], (0,)) and spot({}, (nodes[0],)) == (nodes[1], (0,))
    assert spot({}, new=0) is None and spot({nodes[2]: half}, new=0) == (nodes[2], (2,))
    assert spot({node: frozenset(range(4)) for node in nodes}) is None


def test_a_free_pool_needs_no_budget() -> None:
    free = pool(nodes=2, usd=0.0)
    one = combo("chat", [(AGGREGATED, 4, free, 1, 1.0)])
    site = FreeCapacity(Cluster((free,), ()), {}, {}, (), 1, spare_usd_per_h=0.0)
    assert len(start({one.id: 2}, {one.id: one}, service(), site, 0).groups) == 2
    cheap = replace(free, price_usd_per_h=0.5)
    site = FreeCapacity(Cluster((cheap,), ()), {}, {}, (), 1, spare_usd_per_h=0.5)
    found = start({one.id: 2}, {one.id: one}, service(), site, 0)
    assert len(found.groups) == 1 and found.unplaced == {one.id: 1}


def test_phases_have_letters_in_the_names_of_instances() -> None:
    found = place(PAIR, 4, Cluster((WHERE,), ()), {}, {})
    assert found is not None
    assert sorted(one.instance for one in found[0]) == ["chat-4-d0", "chat-4-d1", "chat-4-p2"]
    assert {one.phase for one in found[0]} == {Phase.DECODE, Phase.PREFILL}
