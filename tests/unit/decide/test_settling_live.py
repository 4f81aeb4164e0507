"""An instance that started recently is not exchanged for a cheaper one."""

from __future__ import annotations

import pytest

from tests.unit.decide.decide_catalogue import AGGREGATED as A
from tests.unit.decide.decide_catalogue import combo, combos, pool, service
from tests.unit.decide.decide_world import World, world
from topics.supply import Price

NEAR, FAR = pool("near", per_node=1, usd=2.0), pool("far", nodes=4, per_node=1, usd=3.0)
START_S, SETTLED_S = 100, 600


def running() -> World:
    """One instance serves in the cheaper pool `near`."""
    catalogue = {
        "chat": combos(
            combo("chat", [(A, 1, NEAR, 1, 10.0)]), combo("chat", [(A, 1, FAR, 1, 10.0)])
        )
    }
    w = world(lambda _m, _t: 6.0, service("chat"), pools=(NEAR, FAR), catalogue=catalogue)
    w.run(START_S)
    assert w.rented(NEAR.id)
    return w


@pytest.mark.parametrize(("pool_id", "usd", "stays"), [(FAR.id, 1.0, True), (NEAR.id, 9.0, False)])
def test_a_new_instance_leaves_its_pool_only_if_the_pool_becomes_dearer(
    pool_id: str, usd: float, stays: bool
) -> None:
    w = running()
    w.prices[pool_id] = Price(pool_id, usd, w.now_ms)
    w.run(SETTLED_S - START_S)
    assert bool(w.rented(NEAR.id)) is stays
    w.run(400)
    assert not w.rented(NEAR.id)
    assert w.ready("chat") == 1
