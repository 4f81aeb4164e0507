"""What is only recommended, and what is paused, takes nothing from models that serve."""

from __future__ import annotations

from autoscaler.domain.cluster import Market, Mode, Policy, Service
from tests.unit.decide.decide_catalogue import AGGREGATED, combo, pool, service
from tests.unit.decide.decide_world import World, world
from topics.supply import Availability

OWNED = pool("own", nodes=6, per_node=1, market=Market.OWNED)
RENTED = pool("rent", nodes=6, per_node=1, usd=3.0)


def two(
    chat: Service, chat_rates: tuple[float, float], mini_rates: tuple[float, float], *pools: str
) -> World:
    """chat and mini, 10 requests/s on one GPU each, at one rate for 300 s and at another after."""
    where = tuple(pool for pool in (OWNED, RENTED) if pool.name in (pools or ("own", "rent")))
    catalogue = {
        model: tuple(combo(model, [(AGGREGATED, 1, one, 1, 10.0)]) for one in where)
        for model in ("chat", "mini")
    }
    rates = {"chat": chat_rates, "mini": mini_rates}
    return world(
        lambda model, t_s: rates[model][t_s >= 300],
        chat,
        service("mini"),
        pools=where,
        catalogue=catalogue,
    )


def test_what_is_only_recommended_takes_no_room_when_none_is_left() -> None:
    """Nothing of chat runs. mini, which nothing further can be had for, keeps its two nodes."""
    w = two(service(mode=Mode.RECOMMEND), (20.0, 20.0), (12.0, 12.0), "rent").run(300)
    assert w.state.models["chat"].recommended
    assert w.ready("mini") == 2
    w.availability[RENTED.id] = Availability(RENTED.id, 0, w.now_ms)
    w.run(600)
    assert w.wanted("mini") == w.ready("mini") == 2


def test_a_higher_priority_that_is_only_recommended_takes_nothing() -> None:
    chat = service(mode=Mode.RECOMMEND, priority=5)
    w = two(chat, (12.0, 60.0), (12.0, 12.0), "own").run(900)
    assert w.wanted("mini") == w.ready("mini") == 2
    assert dict(w.state.models["chat"].recommended) == {f"chat:a1@{OWNED.id}": 4}, "what is free"


def test_what_is_only_recommended_takes_no_owned_node_and_no_budget() -> None:
    w = two(service(mode=Mode.RECOMMEND), (40.0, 40.0), (0.0, 12.0)).run(600)
    assert {placed.pool for group in w.state.groups for placed in group.placed} == {OWNED.id}
    assert w.ready("mini") == 2
    poor = two(service(mode=Mode.RECOMMEND), (40.0, 40.0), (0.0, 12.0), "rent")
    poor.cluster = type(poor.cluster)(
        poor.cluster.pools, poor.cluster.services, Policy(budget_usd_per_h=7.0)
    )
    poor.run(600)
    assert poor.ready("mini") == 2


def test_instances_of_a_paused_model_beyond_what_is_recommended_are_in_the_way() -> None:
    """chat is paused on five owned nodes of six and needs one. mini goes where room is."""
    w = two(service(), (38.0, 5.0), (5.0, 5.0)).run(290)
    w.say("chat", "pause")
    w.run(1200)
    assert w.wanted("chat") == 5
    assert sum(dict(w.state.models["chat"].recommended).values()) == 1
    w.rate = lambda model, _t_s: 5.0 if model == "chat" else 22.0
    w.run(120)
    assert w.ready("mini") == 3
    assert len(w.rented(RENTED.id)) == 2


def test_servers_that_others_started_take_their_nodes_only() -> None:
    """Three of chat run that Shoal did not start, and no node is left: mini keeps its one."""
    theirs = f"chat:a1@{RENTED.id}"
    chat = service(mode=Mode.RECOMMEND, unmanaged=theirs, min_instances=0)
    w = two(chat, (20.0, 20.0), (5.0, 14.0), "rent")
    w.unmanaged = {"chat": 3}
    w.run(200)
    w.availability[RENTED.id] = Availability(RENTED.id, 0, w.now_ms)
    w.run(600)
    assert w.wanted("mini") == w.ready("mini") == 1
    assert dict(w.state.models["chat"].recommended) == {theirs: 3}
    assert len(w.plans) < 20, "nothing moves, so little is planned"
