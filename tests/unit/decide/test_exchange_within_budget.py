"""The hourly cost stays within the budget at every moment, including during an exchange."""

from __future__ import annotations

from autoscaler.domain.cluster import Policy
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, combos, pool, service
from tests.unit.decide.decide_world import World, world

BIG = pool("big", per_node=4, usd=6.0)
LONE = pool("lone", per_node=1, usd=2.0)
BUDGET = 12.0
CATALOGUE = {
    model: combos(
        combo(model, [(AGGREGATED, 1, LONE, 1, 8.0)]),
        combo(model, [(AGGREGATED, 2, BIG, 1, 24.0)]),
    )
    for model in ("a", "b")
}


def bill_usd_per_h(w: World) -> float:
    return sum(len(w.rented(p.id)) * p.price_usd_per_h for p in w.cluster.pools)


def taking_turns(model: str, t: int) -> float:
    """Arrivals/s. Every 900 s one model rises to the high rate and the other
    falls to the low rate.
    """
    high = (t // 900) % 2 == (0 if model == "a" else 1)
    return 34.0 if high else 5.0


def test_cost_never_exceeds_the_budget_while_the_mix_changes() -> None:
    """Both models at their high rate would need 12 USD/h. Each full plan moves capacity between
    them.
    """
    w = world(
        taking_turns,
        service("a"),
        service("b"),
        pools=(BIG, LONE),
        catalogue=CATALOGUE,
        policy=Policy(budget_usd_per_h=BUDGET),
    )
    highest = 0.0

    def observe(now: World) -> None:
        nonlocal highest
        highest = max(highest, bill_usd_per_h(now))

    w.run(2600, observe)
    assert 8.0 <= highest <= BUDGET
    assert w.routed_req_per_s("a") >= 34.0  # a has the high rate and most of the budget again
