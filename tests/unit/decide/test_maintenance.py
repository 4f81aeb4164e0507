"""Nodes that must be emptied without a deadline, such as cordoned ones."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Market
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, world
from topics.fleet import NO_DEADLINE_MS

LEAST, START_S, DRAIN_S = 4, 60, 20


def fleet(nodes: int, market: Market) -> World:
    """Two nodes of a pool with `nodes` nodes serve four instances."""
    where = pool(nodes=nodes, per_node=2, market=market)
    settings = service(min_instances=LEAST)
    w = world(1.0, settings, pools=(where,), start_s=START_S, drain_s=DRAIN_S).run(300)
    assert w.ready("chat") == LEAST
    return w


def states(w: World, node: str) -> set[str]:
    return {str(one.state) for one in w.statuses[node].instances}


@pytest.mark.parametrize("market", [Market.OWNED, Market.ON_DEMAND])
def test_each_node_in_turn_is_emptied_after_its_replacement_serves(market: Market) -> None:
    w = fleet(3, market)
    for node in sorted(w.rented("us/l40s/" + market)):
        w.reclaimed[node] = NO_DEADLINE_MS
        for _ in range(2 * START_S + 2 * DRAIN_S):
            w.tick()
            assert w.ready("chat") >= LEAST
        assert states(w, node) <= {"stopped"}
        del w.reclaimed[node]
        w.run(30)


def test_a_full_fleet_serves_on_until_a_node_is_free_for_the_replacement() -> None:
    w = fleet(2, Market.OWNED)
    node, other = sorted(w.statuses)[:2]
    w.reclaimed[node] = NO_DEADLINE_MS
    for _ in range(1800):
        w.tick()
        assert w.ready("chat") == LEAST
    assert states(w, node) == states(w, other) == {"ready"}
    del w.reclaimed[node]
    for _ in range(300):
        w.tick()
        assert w.ready("chat") == LEAST


def test_when_a_notice_is_withdrawn_the_node_may_be_used_again() -> None:
    w = fleet(2, Market.OWNED)
    node, other = sorted(w.statuses)[:2]
    w.reclaimed[node] = NO_DEADLINE_MS
    w.run(30)
    del w.reclaimed[node]
    w.run(30)
    w.reclaimed[other] = NO_DEADLINE_MS
    w.run(600)
    assert w.ready("chat") == LEAST
    assert states(w, node) == {"ready"}


def test_a_node_that_the_cloud_takes_leaves_the_routes_although_nothing_replaces_it() -> None:
    """The model is short without the node, but streams on it would break at its end."""
    where = pool(nodes=2, per_node=2, market=Market.OWNED)
    w = world(20.0, service(min_instances=LEAST), pools=(where,), drain_s=DRAIN_S).run(300)
    assert w.ready("chat") == LEAST
    node = sorted(w.statuses)[0]
    w.reclaimed[node] = w.now_ms + 120_000
    w.run(110)
    assert states(w, node) <= {"stopped"}
    assert w.ready("chat") == LEAST // 2
