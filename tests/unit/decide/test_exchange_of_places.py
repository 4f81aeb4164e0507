"""Two combos exchange nodes without an additional rented node."""

from __future__ import annotations

from autoscaler.domain.cluster import Mode
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, combos, pool, service
from tests.unit.decide.decide_world import World, world

BIG = pool("big", per_node=4, usd=10.0)
SPARE = pool("spare", per_node=2, usd=9.0)
LONE = pool("lone", per_node=1, usd=1.9)
CATALOGUE = {
    "code": combos(
        combo("code", [(AGGREGATED, 2, BIG, 1, 2.0)]),
        combo("code", [(AGGREGATED, 2, SPARE, 1, 2.0)]),
    ),
    "mini": combos(
        combo("mini", [(AGGREGATED, 1, BIG, 1, 8.0)]),
        combo("mini", [(AGGREGATED, 1, LONE, 1, 8.0)]),
    ),
}


def stepped(mode: Mode = Mode.ACT) -> World:
    """code and mini share a node. The load of code doubles, so code gets a second node at once. In
    the best fleet both combos of code are on the first node and mini is on the other.
    """
    return world(
        lambda model, t: (1.0 if t < 400 else 2.9) if model == "code" else 5.0,
        service("code"),
        service("mini", mode=mode),
        pools=(BIG, SPARE, LONE),
        catalogue=CATALOGUE,
    )


def test_a_combo_waits_until_the_other_leaves_its_node() -> None:
    w = stepped().run(390)
    assert (len(w.rented(BIG.id)), len(w.rented(LONE.id))) == (1, 0)
    most, least = 0, 1e9

    def observe(now: World) -> None:
        nonlocal most, least
        most = max(most, len(now.rented(BIG.id)))
        if now.t_s > 550:
            least = min(least, now.routed_req_per_s("code"))

    w.run(1500, observe)
    assert [len(w.rented(p.id)) for p in (BIG, SPARE, LONE)] == [1, 0, 1]
    assert most == 1  # never a second node during the exchange
    assert least >= 4.0 and w.ready("code") == 2


def test_a_combo_does_not_wait_for_a_model_that_may_not_move() -> None:
    """mini is in mode recommend, so it keeps its GPU and plans avoid that GPU."""
    w = stepped(Mode.RECOMMEND).run(1900)
    assert w.ready("code") == 2 and w.routed_req_per_s("code") >= 4.0
