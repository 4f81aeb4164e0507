"""Models in mode recommend and paused models take no capacity from models that Shoal may change."""

from __future__ import annotations

import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Objective, Policy, Service
from autoscaler.domain.reason import Reason
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest, Urgency, no_plan_answer
from tests.unit.decide.decide_catalogue import AGGREGATED, Catalogue, combo, pool, service
from tests.unit.decide.decide_world import World, world
from topics.alerts import Alert
from topics.reason_codes import ReasonCode
from topics.supply import Availability, Price

OWNED = pool("own", nodes=6, per_node=1, market=Market.OWNED)
RENTED = pool("rent", nodes=6, per_node=1, usd=3.0)


def two(
    chat: Service, chat_rates: tuple[float, float], mini_rates: tuple[float, float], *pools: str
) -> World:
    """chat and mini, 10 requests/s on one GPU each. Each has one rate for 300 s and another
    afterwards.
    """
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


def test_a_recommended_instance_takes_no_node_when_none_is_left() -> None:
    """No instance of chat runs. mini keeps its two nodes after other models take the last free
    node.
    """
    w = two(service(mode=Mode.RECOMMEND), (20.0, 20.0), (12.0, 12.0), "rent").run(300)
    assert w.state.models["chat"].advisory.recommended
    assert w.ready("mini") == 2
    w.availability[RENTED.id] = Availability(RENTED.id, 0, w.now_ms)
    w.run(600)
    assert w.assigned_count("mini") == w.ready("mini") == 2


def test_a_recommended_model_of_higher_priority_takes_no_node() -> None:
    chat = service(mode=Mode.RECOMMEND, priority=5)
    w = two(chat, (12.0, 60.0), (12.0, 12.0), "own").run(900)
    assert w.assigned_count("mini") == w.ready("mini") == 2
    assert dict(w.state.models["chat"].advisory.recommended) == {f"chat:a1@{OWNED.id}": 4}, (
        "what is free"
    )


def test_recommended_instances_take_no_owned_node_and_no_budget() -> None:
    w = two(service(mode=Mode.RECOMMEND), (40.0, 40.0), (0.0, 12.0)).run(600)
    assert {placed.pool for group in w.state.groups for placed in group.placed} == {OWNED.id}
    assert w.ready("mini") == 2
    poor = two(service(mode=Mode.RECOMMEND), (40.0, 40.0), (0.0, 12.0), "rent")
    poor.cluster = type(poor.cluster)(
        poor.cluster.pools, poor.cluster.services, Policy(budget_usd_per_h=7.0)
    )
    poor.run(600)
    assert poor.ready("mini") == 2


def test_surplus_instances_of_a_paused_model_keep_their_nodes() -> None:
    """chat is paused on five of six owned nodes and needs one. mini grows on the rented nodes."""
    w = two(service(), (38.0, 5.0), (5.0, 5.0)).run(290)
    w.say("chat", "pause")
    w.run(1200)
    assert w.assigned_count("chat") == 5
    assert sum(dict(w.state.models["chat"].advisory.recommended).values()) == 1
    w.rate = lambda model, _t_s: 5.0 if model == "chat" else 22.0
    w.run(120)
    assert w.ready("mini") == 3
    assert len(w.rented(RENTED.id)) == 2


def test_unmanaged_servers_take_only_their_own_nodes() -> None:
    """Three servers of chat run that Shoal did not start, and no node is free.
    mini keeps its node.
    """
    theirs = f"chat:a1@{RENTED.id}"
    chat = service(mode=Mode.RECOMMEND, unmanaged=theirs, min_instances=0)
    w = two(chat, (20.0, 20.0), (5.0, 14.0), "rent")
    w.unmanaged = {"chat": 3}
    w.run(200)
    w.availability[RENTED.id] = Availability(RENTED.id, 0, w.now_ms)
    w.run(600)
    assert w.assigned_count("mini") == w.ready("mini") == 1
    assert dict(w.state.models["chat"].advisory.recommended) == {theirs: 3}
    assert len(w.plans) < 20, "nothing moves, so little is planned"


APART = (pool("a", nodes=2, per_node=1, usd=3.0), pool("b", nodes=9, per_node=1, usd=3.0))
OWN_POOLS: Catalogue = {
    model: (combo(model, [(AGGREGATED, 1, where, 1, 10.0)]),)
    for model, where in zip(("mini", "chat"), APART, strict=True)
}


@pytest.mark.parametrize("paused", [False, True])
def test_a_model_without_a_free_node_does_not_delay_recommendations(paused: bool) -> None:
    """mini has both nodes of its pool and needs a third. The rate of chat triples."""
    w = world(
        lambda model, t_s: 30.0 if model == "mini" or t_s >= 400 else 10.0,
        service(mode=Mode.ACT if paused else Mode.RECOMMEND),
        service("mini"),
        pools=APART,
        catalogue=OWN_POOLS,
    ).run(390)
    if paused:
        w.say("chat", "pause")
    w.run(10)
    asked = len(w.requests(Urgency.URGENT))
    w.run(20)
    assert sum(dict(w.state.models["chat"].advisory.recommended).values()) == 4
    w.run(280)
    assert len(w.requests(Urgency.URGENT)) - asked <= 15, "mini rests between two requests"


def test_full_plans_alternate_if_both_kinds_are_always_due() -> None:
    """A price changes every five seconds and a solve takes eight, so a plan is due for both models.

    chat is in mode recommend, mini in mode act. The rates fall to an eighth.
    """
    where = (pool("a", nodes=20, per_node=1), pool("b", nodes=20, per_node=1))
    w = world(
        lambda _model, t_s: 40.0 if t_s < 300 else 5.0,
        service(mode=Mode.RECOMMEND, scale_in_after_s=60.0),
        service("mini"),
        pools=where,
        full_s=8,
    )

    def jump(w: World) -> None:
        if w.t_s > 300 and w.t_s % 5 == 0:
            usd = 4.0 if w.t_s % 10 else 2.5
            w.prices[where[0].id] = Price(where[0].id, usd, w.now_ms)

    w.run(600, jump)
    assert sum(dict(w.state.models["chat"].advisory.recommended).values()) == 1
    assert {request.scope for request in w.requests(Urgency.FULL)} >= {("chat",), ("mini",)}


@pytest.mark.parametrize("paused", [False, True])
def test_a_budget_is_shared_without_planning_all_the_time(paused: bool) -> None:
    w = world(
        12.0,
        service(mode=Mode.ACT if paused else Mode.RECOMMEND),
        service("mini"),
        pools=(RENTED,),
        policy=Policy(budget_usd_per_h=15.0, objective=Objective.THROUGHPUT),
    )
    if paused:
        w.say("chat", "pause")
    w.run(600)
    scopes = [request.scope for request in w.requests(Urgency.FULL)]
    assert len(scopes) <= 6 and {*scopes} == {("chat",), ("mini",)}


def test_a_failed_plan_of_a_recommended_model_does_not_delay_other_models() -> None:
    """No plan for chat is possible, so its planning pauses for a minute. An alert for mini still
    gets a plan.
    """
    w = two(service(mode=Mode.RECOMMEND), (12.0, 12.0), (12.0, 12.0), "own")
    answer = w.planner.answer

    def fails(request: PlanRequest, cluster: Cluster) -> PlanAnswer:
        if request.urgency is Urgency.FULL and "chat" in request.scope:
            return no_plan_answer(request, Reason(ReasonCode.NOT_IN_TIME))
        return answer(request, cluster)

    failed = ReasonCode.NO_NEW_PLAN, ReasonCode.NOT_IN_TIME
    w.planner.answer = fails  # type: ignore[method-assign]
    w.run(290)
    while not any(d.codes == failed for d in w.of_kind("hold")):
        w.run(1)
    asked = len(w.requests(Urgency.FULL))
    w.alerts.append(Alert("a", "slow", "firing", w.now_ms, ("mini",)))
    w.run(3)
    assert [request.scope for request in w.requests(Urgency.FULL)[asked:]] == [("mini",)]
    w.run(600)
    chat = [request for request in w.requests(Urgency.FULL) if "chat" in request.scope]
    assert 8 <= len(chat) <= 13, "once a minute"
    said = [d for d in w.of_kind("hold") if d.codes == failed]
    assert len(said) <= 2, "once in ten minutes"
