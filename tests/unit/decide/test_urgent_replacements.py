"""Urgent additions that replace running instances: only if these may leave. They count as
additions.
"""

from __future__ import annotations

import datetime as dt

from autoscaler.domain.cluster import Mode
from autoscaler.domain.schedule import Weekly
from tests.unit.decide.decide_catalogue import AGGREGATED as A
from tests.unit.decide.decide_catalogue import combo, combos, pool, service
from tests.unit.decide.decide_world import T0, World, world
from topics.reason_codes import ReasonCode

SMALL, LARGE = pool("small", nodes=40, per_node=1, usd=2.0), pool("large", per_node=1, usd=4.5)
CATALOGUE = {
    "chat": combos(combo("chat", [(A, 1, SMALL, 1, 10.0)]), combo("chat", [(A, 1, LARGE, 1, 60.0)]))
}


def surge(at_s: float = 700.0, **more: object) -> World:
    """12 req/s, then 26 from `at_s` on: small instances are added, or a large one replaces them.

    Instances have settled after 600 s.
    """
    return world(
        lambda _m, t: 12.0 if t < at_s else 26.0,
        service("chat", **more),
        pools=(SMALL, LARGE),
        catalogue=CATALOGUE,
    )


def test_instances_that_may_not_leave_are_not_replaced() -> None:
    now = dt.datetime.fromtimestamp(T0 / 1000, tz=dt.UTC)
    frozen = Weekly.parse(f"{now:%H:%M}-{now + dt.timedelta(hours=1):%H:%M}")
    w = surge(freezes=(frozen,)).run(850)
    assert {a.pool for a in w.applied.values() if a.instances} == {SMALL.id}
    assert w.assigned_count("chat") == 4


def test_new_instances_are_not_replaced() -> None:
    w = surge(at_s=100.0).run(250)
    assert {a.pool for a in w.applied.values() if a.instances} == {SMALL.id}
    assert w.assigned_count("chat") == 4


def test_mode_recommend_recommends_only_additions() -> None:
    w = surge(mode=Mode.RECOMMEND).run(850)
    assert [count for _, count in w.state.models["chat"].advisory.recommended] == [4]


def test_a_new_leader_counts_an_urgent_replacement_as_scale_out() -> None:
    w = surge().run(720)
    found = w.decisions[-1]
    assert any(n < 0 for _, n in found.change)
    assert (found.kind, found.over_since_ms > 0) == ("scale_out", True)
    before = w.state.models["chat"]
    assert before.target.overload_since_ms == 0
    w.restart_controller()
    after = w.state.models["chat"]
    assert (after.hysteresis.last_out_ms, after.hysteresis.reversals) == (
        before.hysteresis.last_out_ms,
        before.hysteresis.reversals,
    )
    assert after.hysteresis.last_out_ms == found.at_ms


def test_a_rise_long_after_a_short_silence_of_a_node_is_no_replacement() -> None:
    """The node returned before a replacement was ordered, so no capacity was missing."""
    w = world(lambda _m, t: 20.0 if t < 900 else 40.0, service("chat"), pools=(SMALL,)).run(300)
    node = min(w.rented(SMALL.id))
    w.cut.add(node)
    w.run(16)
    assert w.state.models["chat"].capacity.lost_ms
    w.cut.discard(node)
    w.run(704)
    (rise,) = [d for d in w.decisions if d.at_ms > T0 + 900_000 and d.change][:1]
    assert rise.kind == "scale_out" and ReasonCode.CAPACITY_LOST not in rise.codes


def test_a_replacement_names_the_nodes_whose_capacity_was_lost() -> None:
    w = world(20.0, service("chat"), pools=(SMALL,)).run(300)
    node = min(w.rented(SMALL.id))
    w.cut.add(node)
    w.run(60)
    assert w.decisions[-1].kind == "replace"
    assert w.decisions[-1].reason.startswith(f"the capacity on {node} was lost")
    assert w.state.models["chat"].capacity.lost_nodes == ()
