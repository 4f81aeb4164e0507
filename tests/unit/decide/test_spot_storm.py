"""The provider reclaims half of the spot nodes within a minute."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Market
from tests.unit.decide.decide_catalogue import pool, service, simple
from tests.unit.decide.decide_world import world
from topics.supply import Availability

SPOT = pool("spot", nodes=16, per_node=1, market=Market.SPOT, usd=3.0)
OTHER = pool("other", nodes=16, per_node=1, usd=8.0)
START_S, NOTICE_S = 60, 120


@pytest.mark.parametrize("spot_is_left", [True, False])
def test_demand_is_served_again_after_half_of_the_spot_nodes_are_reclaimed(
    spot_is_left: bool,
) -> None:
    """Ten nodes serve 76 req/s at 80%. Every 12 s one more gets a notice of two minutes. The test
    runs with and without spot nodes left on the market.

    No route names a reclaimed node. Capacity covers demand again one start time plus a minute after
    the last notice.
    """
    catalogue = {"chat": (*simple("chat", SPOT), *simple("chat", OTHER))}
    w = world(
        76.0,
        service(spot_share=1.0, survive="none"),
        pools=(SPOT, OTHER),
        catalogue=catalogue,
        start_s=START_S,
        drain_s=20,
    ).run(400)
    nodes = sorted(w.rented(SPOT.id))
    assert len(nodes) == 10 and w.routed_req_per_s("chat") >= 76.0
    going, carried, lowest = nodes[::2], [], 1e9
    if not spot_is_left:
        w.availability[SPOT.id] = Availability(SPOT.id, 0, w.now_ms)
    for t_s in range(4 * NOTICE_S):
        if t_s % 12 == 0 and t_s < 60:
            w.reclaimed[going[t_s // 12]] = w.now_ms + NOTICE_S * 1000
        w.tick()
        for node, taken_ms in w.reclaimed.items():
            if w.now_ms >= taken_ms:
                w.cut.add(node)
        routed = {e.instance for g in w.routes["chat"].groups for e in g.aggregated}
        gone = {i.instance for n in w.cut for i in w.statuses[n].instances}
        assert not routed & gone, f"after {t_s} s"
        lowest = min(lowest, w.routed_req_per_s("chat"))
        carried.append(w.routed_req_per_s("chat") >= 76.0)
    assert lowest >= 50.0, "the other half and what is under way"
    assert all(carried[48 + START_S + 60 :])
