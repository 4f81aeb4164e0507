"""The cost that a controller reports, compared with an independent calculation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Market
from autoscaler.state.controller_state import Observation
from autoscaler.tick.status import fleet_status
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import world
from topics.fleet import InstanceState
from topics.supply import Price

OWNED = pool("own", nodes=1, per_node=1, market=Market.OWNED)
SPOT = pool("spot", nodes=6, per_node=2, market=Market.SPOT, usd=3.0)
DEMAND = pool("more", nodes=6, per_node=1, usd=8.0)


def test_the_reported_cost_matches_node_hours_within_two_percent() -> None:
    """An hour with changing load, a changed price and a reclaimed node. The reference is the node
    seconds in executor reports.
    """
    chat = service(spot_share=0.5, scale_in_after_s=60.0, max_disruption=0.5)
    pools = (OWNED, SPOT, DEMAND)
    catalogue = {"chat": tuple(one for p in pools for one in simple("chat", p))}
    w = world(
        lambda _m, t: 30.0 + 25.0 * math.sin(t / 500.0), chat, pools=pools, catalogue=catalogue
    )
    usd = {SPOT.id: 3.0, DEMAND.id: 8.0, OWNED.id: 0.0}
    reported = billed = 0.0
    every_s = 4
    for t_s in range(0, 3600, every_s):
        if t_s == 1500:
            usd[SPOT.id] = 4.0
            w.prices[SPOT.id] = Price(SPOT.id, 4.0, w.now_ms)
        if t_s == 2000:
            w.reclaimed[min(w.rented(SPOT.id))] = w.now_ms + 120_000
        w.tick(every_s)
        seen = Observation(statuses=dict(w.statuses))
        reported += fleet_status(w.state, seen, w.cluster, w.now_ms).usd_per_h / 3600.0 * every_s
        billed += sum(
            usd[status.pool] / 3600.0 * every_s
            for status in w.statuses.values()
            if any(i.state is not InstanceState.STOPPED for i in status.instances)
        )
    assert billed > 5.0
    assert reported == pytest.approx(billed, rel=0.02)


def test_a_new_node_with_a_reused_name_costs_from_its_start() -> None:
    """The old node was deleted when it was empty. The new node has not reported yet."""
    sleeps = service(min_instances=0, scale_in_after_s=60.0)
    where = pool("one", nodes=1, per_node=1, usd=3.0)
    w = world(lambda _m, t_s: 5.0 if t_s < 300 or t_s > 2400 else 0.0, sleeps, pools=(where,))
    w.run(1500)
    assert w.assigned_count("chat") == 0
    w.cut.update(w.applied)
    w.run(910)
    started = w.decisions[-1]
    assert started.kind == "scale_out" and "+3.00 USD/h" in started.reason
    assert w.plans[-1].cost_usd_per_h == 3.0
    seen = Observation(statuses=dict(w.statuses))
    assert fleet_status(w.state, seen, w.cluster, w.now_ms).usd_per_h == 3.0


def test_a_lost_node_counts_neither_for_its_model_nor_in_total() -> None:
    w = world(15.0, service(), pools=(pool("one", nodes=8, per_node=1, usd=2.0),)).run(300)
    w.cut.add(min(node for node, desired in w.applied.items() if desired.instances))
    for _ in range(120):
        w.tick()
        now = fleet_status(w.state, Observation(statuses=dict(w.statuses)), w.cluster, w.now_ms)
        assert now.models[0].usd_per_h == now.usd_per_h > 0.0


@pytest.mark.parametrize(("share", "is_over"), [(0.8, False), (0.5, True), (1.0, False)])
def test_a_model_with_more_spot_than_it_allows_is_over_its_limit(
    share: float, is_over: bool
) -> None:
    """30 req/s at 80% need 37.5 req/s: one instance of 10 req/s on demand, and three on spot."""
    one = pool("one", nodes=1, per_node=1)
    spot = pool("spot", nodes=8, per_node=1, market=Market.SPOT, usd=3.0)
    catalogue = {"chat": tuple(found for p in (one, spot) for found in simple("chat", p))}
    w = world(30.0, service(spot_share=1.0), pools=(one, spot), catalogue=catalogue).run(60)
    combos = {found.id: found for found in catalogue["chat"]}
    firm = next(g for g in w.state.groups if combos[g.combo_id].members[0].pool == spot.id)
    cluster = replace(w.cluster, services=(service(spot_share=share),))
    groups = tuple(
        replace(group, combo_id=f"chat:a1@{one.id}") if group is firm else group
        for group in w.state.groups
    )
    state = replace(w.state, groups=groups, evaluated=replace(w.state.evaluated, combos=combos))
    seen = Observation(statuses=dict(w.statuses))
    (chat,) = fleet_status(state, seen, cluster, w.now_ms).models
    assert len(groups) == 4 and chat.spot_share == pytest.approx(0.75)
    assert chat.over_spot_limit is is_over
    only = replace(cluster, pools=(spot,))
    assert not fleet_status(w.state, seen, only, w.now_ms).models[0].over_spot_limit
