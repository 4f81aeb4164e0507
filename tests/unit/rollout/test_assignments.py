"""Assignments and routes of groups: only changes are published, and only complete pairs have a
route.
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Market
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.rollout.assignments import (
    changed_assignments,
    changed_nodes,
    changed_routes,
    route_groups,
    slots,
)
from autoscaler.rollout.serving_group import GroupView, Life, Placed, ServingGroup
from tests.unit.decide.decide_catalogue import DECODE, PREFILL, combo, pool, service

WHERE = pool(market=Market.OWNED, per_node=8, nodes=1)
PAIR = combo("chat", [(PREFILL, 1, WHERE, 1, 12.0), (DECODE, 2, WHERE, 2, 5.0)])
NODE = "us.l40s.owned.0"
PLACED = (
    Placed("chat-1-d0", Phase.DECODE, NODE, WHERE.id, (0, 1)),
    Placed("chat-1-d1", Phase.DECODE, NODE, WHERE.id, (2, 3)),
    Placed("chat-1-p2", Phase.PREFILL, NODE, WHERE.id, (4,)),
)
BUCKET = Lengths(1000.0, 200.0)
GROUP = ServingGroup(f"{PAIR.id}:1", "chat", PAIR.id, "fp8", PLACED, 0)


def view(*ready: int) -> dict[str, GroupView]:
    ends = tuple((PLACED[k], f"h:{k}") for k in ready)
    return {GROUP.name: GroupView(ends, len(ready) == 3, "", False)}


def test_an_assignment_is_published_only_if_its_content_changed() -> None:
    """The first record has generation 1. Equal content gives no record, a drain gives generation 2,
    and a removed group an empty assignment.
    """
    (first,) = changed_assignments([GROUP], {}, 5, 10)
    assert (first.generation, first.leader_token, len(first.instances)) == (1, 5, 3)
    assert {i.group for i in first.instances} == {GROUP.name}
    assert changed_assignments([GROUP], {NODE: first}, 5, 20) == ()
    (second,) = changed_assignments([replace(GROUP, life=Life.DRAINING)], {NODE: first}, 5, 20)
    assert second.generation == 2 and all(i.drain for i in second.instances)
    (third,) = changed_assignments([], {NODE: second}, 5, 30)
    assert third.generation == 3 and third.instances == ()
    assert changed_assignments([], {NODE: third}, 5, 40) == ()


def test_a_new_leader_token_publishes_again() -> None:
    """The content is the same; only the token differs."""
    (first,) = changed_assignments([GROUP], {}, 5, 10)
    (again,) = changed_assignments([GROUP], {NODE: first}, 6, 20)
    assert again.leader_token == 6 and again.generation == 2
    assert again.instances == first.instances


def test_a_pair_has_a_route_only_with_both_phases_and_the_weight_of_its_ready_part() -> None:
    """Decode alone has no route. One instance of each phase has weight 5. All instances have that
    of the slower phase, 10.
    """
    combos = {PAIR.id: PAIR}
    assert route_groups([GROUP], view(0, 1), combos, BUCKET) == ()
    (part,) = route_groups([GROUP], view(0, 2), combos, BUCKET)
    assert part.weight == 5.0 and len(part.decode) == len(part.prefill) == 1
    (whole,) = route_groups([GROUP], view(0, 1, 2), combos, BUCKET)
    assert whole.weight == 10.0 and len(whole.decode) == 2


def test_a_route_object_is_reused_while_ready_instances_and_rates_stay() -> None:
    """Statuses arrive with equal addresses in new objects."""
    combos = {PAIR.id: PAIR}
    (first,) = route_groups([GROUP], view(0, 1, 2), combos, BUCKET)
    ends = tuple((placed, "".join(("h:", str(k)))) for k, placed in enumerate(PLACED))
    again = {GROUP.name: GroupView(ends, True, "", False)}
    assert route_groups([GROUP], again, combos, BUCKET)[0] is first
    moved = {GROUP.name: GroupView((*ends[:2], (PLACED[2], "h:9")), True, "", False)}
    (other,) = route_groups([GROUP], moved, combos, BUCKET)
    assert [end.address for end in other.prefill] == ["h:9"]
    slower = replace(PAIR, req_per_s=0.5 * PAIR.req_per_s)
    (worth_less,) = route_groups([GROUP], again, {PAIR.id: slower}, BUCKET)
    assert worth_less.weight == 0.5 * first.weight


def test_slots_are_twice_the_requests_in_flight_at_capacity() -> None:
    """By Little's law a prefill instance has 12/s x 0.3 s = 3.6 requests in flight, and a decode
    instance 5/s x 200 x 20 ms.
    """
    (pair,) = route_groups([GROUP], view(0, 1, 2), {PAIR.id: PAIR}, BUCKET)
    assert (PAIR.ttft_ms, PAIR.tpot_ms) == (300.0, 20.0)
    assert [end.slots for end in pair.prefill] == [8 + 4]
    assert [end.slots for end in pair.decode] == [20, 20]
    alone = combo("chat", [(Phase.AGGREGATED, 1, WHERE, 1, 2.0)])
    placed = Placed("chat-2-a0", Phase.AGGREGATED, NODE, WHERE.id, (5,))
    assert slots(alone, placed, BUCKET) == 18 + 4  # 2/s x (0.3 s + 200 x 20 ms)
    assert slots(alone, placed, Lengths(1000.0, 1.0)) == 2 + 4  # 2/s x 0.32 s
    assert slots(alone, PLACED[2], BUCKET) == 0  # an instance of another combo has no known rate


def test_unrouted_and_draining_groups_are_left_out() -> None:
    """A retiring group still has a route."""
    combos = {PAIR.id: PAIR}
    routed = {
        life: bool(route_groups([replace(GROUP, life=life)], view(0, 1, 2), combos, BUCKET))
        for life in Life
    }
    assert routed == {
        Life.ACTIVE: True,
        Life.RETIRING: True,
        Life.UNROUTED: False,
        Life.DRAINING: False,
    }


def test_routes_are_published_first_and_on_change() -> None:
    """The first routes are empty, so that gateways learn of the model. Later only changes are
    published, with the SLO.
    """
    served = service()
    first = changed_routes(served, (), None, 1, 10)
    assert first is not None and first.generation == 1 and first.ttft_limit_ms == 1000.0
    assert changed_routes(served, (), first, 1, 20) is None
    assert first.aliases == (served.architecture.name,)
    read = replace(served, architecture=replace(served.architecture, name="/models/x/config.json"))
    from_file = changed_routes(read, (), None, 1, 10)
    assert from_file is not None and from_file.aliases == ()
    started = changed_routes(served, (), first, 1, 20, start_s=123.4)
    assert started is not None and started.start_s == 120.0
    assert changed_routes(served, (), started, 1, 30, start_s=121.0) is None
    # Without a known start time, the routes keep the earlier start time.
    assert changed_routes(served, (), started, 1, 30) is None
    groups = route_groups([GROUP], view(0, 1, 2), {PAIR.id: PAIR}, BUCKET)
    second = changed_routes(served, groups, first, 1, 20)
    assert second is not None and second.generation == 2


def test_only_nodes_of_changed_groups_are_updated() -> None:
    """An added, removed or changed group names its nodes. An unchanged group does not."""
    other = replace(GROUP, name=f"{GROUP.name}9", placed=(replace(GROUP.placed[0], node="else"),))
    assert changed_nodes((GROUP, other), (GROUP, other)) == frozenset()
    assert changed_nodes((GROUP, other), (GROUP,)) == {"else"}
    assert changed_nodes((GROUP,), (GROUP, other)) == {"else"}
    assert changed_nodes((GROUP, other), (replace(GROUP, life=Life.DRAINING), other)) == {
        placed.node for placed in GROUP.placed
    }
    (first,) = changed_assignments([other], {}, 5, 10, nodes={"else"})
    assert first.node == "else"
    assert changed_assignments([GROUP, other], {"else": first}, 5, 20, nodes={"else"}) == ()
