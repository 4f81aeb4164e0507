"""Faults of prices, nodes and launches: price checks, replacement of nodes, and back-off."""

from __future__ import annotations

from autoscaler.domain.cluster import Market, Policy
from autoscaler.planning.planner_messages import Urgency
from tests.unit.decide.decide_catalogue import AGGREGATED as A
from tests.unit.decide.decide_catalogue import combo, combos, pool, service, simple
from tests.unit.decide.decide_world import World, world
from topics.reason_codes import ReasonCode
from topics.supply import Availability, Price

ONE = pool(nodes=40, per_node=1, usd=2.0)


def test_a_price_beyond_twenty_times_the_declared_one_is_rejected() -> None:
    """A rise from 2 to 3 is accepted and 100 is rejected. Plans and cost then use 3, not 2."""
    w = world(12.0, pools=(ONE,)).run(100)
    w.prices[ONE.id] = Price(ONE.id, 3.0, w.now_ms)
    w.run(5)
    w.prices[ONE.id] = Price(ONE.id, 100.0, w.now_ms)
    w.run(5)
    w.rate = lambda _m, _t: 30.0
    w.run(30)
    assert w.requests()[-1].prices_usd_per_h == ((ONE.id, 3.0),)
    assert w.plans[-1].cost_usd_per_h == 3.0 * len(w.rented(ONE.id)) > 6.0


def test_only_available_nodes_are_rented() -> None:
    w = world(lambda _m, t: 5.0 if t < 100 else 45.0, pools=(ONE,)).run(99)
    w.availability[ONE.id] = Availability(ONE.id, 1, w.now_ms)
    w.run(200)
    assert len(w.rented(ONE.id)) == 2
    w.availability[ONE.id] = Availability(ONE.id, 2, w.now_ms)
    w.run(10)
    assert len(w.rented(ONE.id)) == 4


def test_urgent_additions_keep_to_the_budget_and_state_it() -> None:
    w = world(
        lambda _m, t: 5.0 if t < 100 else 45.0,
        pools=(ONE,),
        policy=Policy(budget_usd_per_h=7.0),
    ).run(300)
    assert len(w.rented(ONE.id)) == 3
    assert any(ReasonCode.BUDGET in d.codes for d in w.of_kind("infeasible"))


def test_no_instance_leaves_while_one_of_two_gateways_is_silent() -> None:
    """Half of the 40 req/s is no longer reported, for longer than excess must last."""
    w = world(40.0, pools=(ONE,), gateways=("g1", "g2")).run(900)
    wanted = w.assigned_count("chat")
    w.silent.add("g2")
    w.run(1000)
    assert w.assigned_count("chat") == wanted and w.of_kind("scale_in") == []


def test_a_failed_node_does_not_block_the_other_nodes_of_its_pool() -> None:
    where = pool(nodes=8, per_node=1)
    w = world(50.0, pools=(where,), failing={"us.l40s.on-demand.3"}).run(200)
    assert w.ready("chat") == 7  # 50 / 0.8 = 62.5 req/s raw
    assert "us.l40s.on-demand.3" not in w.rented(where.id)


def test_lost_nodes_leave_cost_slots_and_routes() -> None:
    """Two of three nodes fall silent. After 15 s they leave the routes and the cost, and other
    nodes replace them. After ten minutes the controller gives them up.
    """
    where = pool(nodes=5, per_node=1)
    w = world(20.0, pools=(where,)).run(300)
    lost = sorted(w.rented(where.id))[:2]
    w.cut.update(lost)
    w.run(20)
    assert w.ready("chat") == 1
    w.run(110)
    assert w.ready("chat") == 3
    assert w.plans[-1].cost_usd_per_h == 3 * 8.0
    assert {p.combo for p in w.plans[-1].targets} == {"chat:a1@us/l40s/on-demand"}
    w.run(560)
    assert w.ready("chat") == 3 and not any(
        placed.node in lost for g in w.state.groups for placed in g.placed
    )
    w.rate = lambda _m, _t: 36.0  # This load needs five nodes, so it uses the given-up nodes again.
    w.cut.clear()
    w.run(150)
    assert w.ready("chat") == 5


def test_a_region_recovers_after_the_loss_of_its_only_node() -> None:
    """The region may start other nodes although its only known node is lost."""
    where = pool(nodes=3, per_node=4)
    w = world(12.0, pools=(where,)).run(200)
    (lost,) = w.rented(where.id)
    w.cut.add(lost)
    w.run(135)
    assert w.rented(where.id) - {lost} and w.ready("chat") >= 2
    w.run(600)
    assert lost not in w.rented(where.id) and w.ready("chat") == 2


def test_instances_of_a_silent_region_are_not_started_twice() -> None:
    """Both nodes are silent for ten minutes, and there is no other region. No instance is started.
    Afterwards the assignments are as before.
    """
    where = pool(nodes=9, per_node=1)
    w = world(12.0, pools=(where,)).run(200)
    before = dict(w.applied)
    w.cut.add(where.id)
    w.run(700)
    w.cut.clear()
    w.run(700)
    assert {n: a.instances for n, a in w.applied.items()} == {
        n: a.instances for n, a in before.items()
    }


SPOT = pool(nodes=8, per_node=1, market=Market.SPOT, usd=1.0)
SOLID = pool(nodes=8, per_node=1, usd=3.0)
EITHER = {
    "chat": combos(
        combo("chat", [(A, 1, SPOT, 1, 10.0)]),
        combo("chat", [(A, 1, SOLID, 1, 10.0)]),
    )
}


def test_a_spot_only_model_gets_its_minimum() -> None:
    w = world(1.0, service(min_instances=2, spot_share=0.5), pools=(SPOT,)).run(90)
    assert w.ready("chat") == 2


def test_the_second_single_addition_may_be_spot() -> None:
    """Half of the fleet may be spot. Two instances are added one by one, and
    one of them is spot.
    """
    served = service(spot_share=0.5)
    w = world(
        lambda _m, t: 5.0 if t < 100 else 14.0, served, pools=(SPOT, SOLID), catalogue=EITHER
    ).run(180)
    assert (len(w.rented(SPOT.id)), len(w.rented(SOLID.id))) == (1, 1)


def test_larger_instances_replace_small_ones_at_the_maximum() -> None:
    """The maximum is three instances, and three of 1 req/s run. 12 req/s need larger ones, which a
    full plan starts.
    """
    tiny, large = pool("tiny", per_node=1, usd=1.0), pool("large", per_node=1, usd=9.0)
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, tiny, 1, 1.25)]),
            combo("chat", [(A, 1, large, 1, 12.5)]),
        )
    }
    w = world(
        lambda _m, t: 2.5 if t < 400 else 12.0,
        service(max_instances=3),
        pools=(tiny, large),
        catalogue=catalogue,
    ).run(399)
    assert w.assigned_count("chat") == 3 and w.routed_req_per_s("chat") == 3.75
    w.run(600)
    assert w.routed_req_per_s("chat") * 0.8 >= 12.0 and w.assigned_count("chat") <= 3


def test_a_higher_priority_gets_gpus_in_a_full_pool() -> None:
    """All four GPUs run the model of priority 0. The model of priority 10 takes the GPUs that it
    needs.
    """
    full = pool(nodes=4, per_node=1)
    services = (service("low"), service("high", priority=10, min_instances=0))
    catalogue = {m: simple(m, full) for m in ("low", "high")}

    def rate(model: str, t: int) -> float:
        return 32.0 if model == "low" else 0.0 if t < 200 else 13.0

    w = world(rate, *services, pools=(full,), catalogue=catalogue).run(199)
    assert (w.ready("low"), w.ready("high")) == (4, 0)
    w.run(700)
    assert (w.ready("low"), w.ready("high")) == (2, 2)


def test_scale_in_keeps_the_capacity_to_survive_a_lost_node() -> None:
    """12 req/s that must survive the loss of a node need three instances of 10. Scale-in from 40
    req/s ends at three, not two.
    """

    def check(w: World) -> None:
        left = sorted((g.weight for g in w.routes["chat"].groups), reverse=True)[1:]
        assert sum(left) >= 12.0

    w = world(
        lambda _m, t: 40.0 if t < 300 else 12.0, service(survive="one-node"), pools=(ONE,)
    ).run(200)
    w.run(1500, check)
    assert w.of_kind("scale_in") and w.ready("chat") == 3


def test_an_unserved_model_sends_one_urgent_request_per_half_minute() -> None:
    """No nodes are available for ten minutes."""
    small = pool(nodes=1, per_node=1)
    w = world(lambda _m, t: 5.0 if t < 90 else 50.0, pools=(small,)).run(700)
    late = [r for r in w.requests(Urgency.URGENT) if r.at_ms > w.now_ms - 500_000]
    assert 10 <= len(late) <= 18


def test_a_price_jump_is_rejected_and_stated_once() -> None:
    w = world(5.0, pools=(pool("one"),)).run(20)
    name = w.cluster.pools[0].id
    w.prices[name] = Price(name, 9.0, w.now_ms)
    w.run(5)
    w.prices[name] = Price(name, 9000.0, w.now_ms)
    w.run(60)
    said = [d.reason for d in w.decisions if ReasonCode.PRICE_SET_ASIDE in d.codes]
    assert said == [f"{name}: implausible price 9000 USD/h ignored; 9 stays in force"]
    assert w.state.supply.prices_usd_per_h() == {name: 9.0}


def test_a_silent_feed_is_stated_and_planned_with_caution() -> None:
    """After half an hour without the feed, plans use no price below the declared one. They add at
    most one node until the feed reports again.
    """
    w = world(5.0, pools=(pool("one", usd=8.0),)).run(20)
    name = w.cluster.pools[0].id
    w.prices[name] = Price(name, 4.0, w.now_ms)
    w.availability[name] = Availability(name, 6, w.now_ms)
    w.run(1790)
    assert w.state.supply.prices_usd_per_h() == {name: 4.0}
    w.run(30)
    assert w.state.supply.prices_usd_per_h() == {name: 8.0}
    w.prices[name] = Price(name, 4.0, w.now_ms)
    w.run(5)
    assert w.state.supply.prices_usd_per_h() == {name: 4.0}
    feeds = (ReasonCode.PRICE_STALE, ReasonCode.OFFER_STALE, ReasonCode.PRICE_FRESH)
    assert [d.codes[0] for d in w.decisions if d.codes[0] in feeds] == [*feeds]


def test_a_reclaimed_node_is_replaced_at_once_and_empty_before_its_end() -> None:
    """The notice is two minutes. Replacements start on other nodes within three seconds. The node
    serves for at most half of the notice and has stopped before its end.
    """
    where = pool(nodes=8, per_node=1, market=Market.SPOT)
    w = world(20.0, pools=(where,), start_s=90, drain_s=20).run(300)
    before = w.rented(where.id)
    node = sorted(before)[0]
    taken_ms = w.now_ms + 120_000
    w.reclaimed[node] = taken_ms
    w.run(3)
    assert len(w.rented(where.id) - before) == 1
    assert w.ready("chat") == len(before), "it still serves"
    w.run(67)
    assert w.ready("chat") == len(before) - 1, "half of the notice is over"
    w.run(45)
    assert w.now_ms < taken_ms
    assert w.ready("chat") == len(before)
    states = [str(i.state) for i in w.statuses[node].instances]
    assert states in ([], ["stopped"])
    assert node not in w.rented(where.id)


def test_a_model_at_zero_wakes_after_all_its_idle_nodes_were_deleted() -> None:
    """Nodes start 30 s after their first assignment and are deleted after a minute without
    instances. A region without any node does not count as cut off, and each instance starts once.
    """
    asleep = service(min_instances=0, zero_after_s=600.0, scale_in_after_s=300.0)
    rate = lambda _m, t_s: 0.0 if 300 <= t_s < 2000 else 15.0  # noqa: E731
    w = world(rate, asleep, pools=(pool(nodes=12, per_node=1),))
    empty_s: dict[str, int] = {}
    called_s: dict[str, int] = {}

    def provision(w: World) -> None:
        for node, assigned in w.applied.items():
            if not assigned.instances:
                called_s.pop(node, None)
                if w.t_s - empty_s.setdefault(node, w.t_s) > 60:
                    w.cut.add(node)
                continue
            empty_s.pop(node, None)
            if node in w.cut and w.t_s - called_s.setdefault(node, w.t_s) > 30:
                w.cut.discard(node)

    w.run(1990, provision)
    assert w.assigned_count("chat") == 0
    assert w.applied.keys() == w.cut, "all are deleted"
    before = len(w.of_kind("scale_out"))
    w.run(200, provision)
    assert w.ready("chat") == 2
    assert len(w.of_kind("scale_out")) - before <= 2


def test_rented_nodes_that_all_failed_are_replaced_after_half_an_hour() -> None:
    """At first the loss looks like a cut-off region, in which no instance is started."""
    w = world(20.0, pools=(pool(nodes=12, per_node=1),)).run(300)
    dead = w.rented(w.cluster.pools[0].id)
    w.cut.update(dead)
    w.run(1700)
    assert w.rented(w.cluster.pools[0].id) == dead
    w.run(300)
    new = w.rented(w.cluster.pools[0].id) - dead
    assert len(new) == len(dead)
    assert w.ready("chat") == len(new)


def test_dead_nodes_are_given_up_after_an_hour_if_no_other_node_is_left() -> None:
    w = world(20.0, pools=(pool(nodes=3, per_node=1),)).run(300)
    w.cut.update(w.rented(w.cluster.pools[0].id))
    w.run(3500)
    w.cut.clear()  # the provider starts new nodes under the same names
    w.run(300)
    assert w.ready("chat") == 3
