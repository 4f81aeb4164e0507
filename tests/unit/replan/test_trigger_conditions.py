"""Conditions of single triggers, and the memory by which triggers wait."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoscaler.domain.cluster import Market, Mode, Objective, Policy
from autoscaler.domain.quality_route import ScoreMix
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.estimate.engine_view import EngineView
from autoscaler.replan.rate_limit import thresholds_may_move
from autoscaler.replan.trigger_inputs import TriggerFleet, TriggerInputs
from autoscaler.replan.triggers import mix_changed, scores_changed
from autoscaler.replan.waiting_triggers import (
    already_tried,
    collect,
    declared_only,
    group_positions,
    limited_to,
    scope_of,
    waits_for_room,
)
from autoscaler.rollout.launch_failures import Failure
from autoscaler.rollout.serving_group import Life, RouteExit, Switch
from autoscaler.rollout.supply import GoodPrice, Offer, Supply
from autoscaler.state.controller_state import (
    ControllerState,
    Declared,
    Evaluated,
    FullPlans,
    LastRequest,
    Term,
)
from autoscaler.state.model_state import Capacity, DemandEstimate, ModelState, Target
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger, partly_applied
from tests.unit.decide.decide_catalogue import AGGREGATED, BUCKET, combo, service
from tests.unit.replan.planned_fleet import CHAT, CODE, NOW, RENTED, Fleet, group, node
from topics.alerts import Alert
from topics.reason_codes import ReasonCode

PRICE = Trigger((), Reason(ReasonCode.PRICE, RENTED.id))
CLUSTER = Fleet().build().cluster
STATE = ControllerState(
    Term(NOW),
    declared=Declared({s.model: s for s in CLUSTER.services}),
    full=FullPlans(asked_ms=(NOW,)),
)
NEWS = TriggerInputs(NOW + 1000, STATE, CLUSTER, Supply(), {})


def why(news: TriggerInputs) -> list[tuple[ReasonCode, str, tuple[float, ...]]]:
    return [(one.why.code, one.why.subject, tuple(one.why.quantities)) for one in collect(news, ())]


def targeted(before: float, now: float, serving: float = 10.0, **capacity: Any) -> TriggerInputs:
    """A model with 20 req/s in two instances of `serving` whose target changed."""
    made = Fleet(
        (group(CHAT, 0, node(0)), group(CHAT, 1, node(1))),
        rates={"chat": now, "code": 8.0},
        changes={"chat": {"capacity": Capacity(**capacity)}},
    ).build()
    view = made.views["chat"]
    ready = tuple(replace(one, req_per_s=serving) for one in view.serving.ready)
    views = {"chat": replace(view, serving=replace(view.serving, ready=ready))}
    was = replace(made.models["chat"], target=Target(before))
    return replace(NEWS, views=views, state=replace(STATE, models={"chat": was}))


@pytest.mark.parametrize(
    ("before", "now", "fires"),
    [(16.0, 8.0, True), (16.0, 8.01, False), (8.0, 8.0, False), (7.0, 8.0, False)],
)
def test_a_lower_target_triggers_if_one_instance_is_superfluous(
    before: float, now: float, fires: bool
) -> None:
    """Of 16 planned req/s, one instance serves 8."""
    expected = [(ReasonCode.EXCESS, "chat", ())] if fires else []
    assert why(targeted(before, now)) == expected


def test_a_derated_instance_is_a_smaller_excess() -> None:
    assert why(targeted(16.0, 4.0, derate=0.5)) == [(ReasonCode.EXCESS, "chat", ())]
    assert why(targeted(16.0, 4.01, derate=0.5)) == []


def test_no_excess_of_a_model_without_ready_instances_or_memory() -> None:
    fired = targeted(16.0, 8.0)
    view = fired.views["chat"]
    idle = replace(view, serving=replace(view.serving, ready=()))
    assert why(replace(fired, views={"chat": idle})) == []
    assert why(replace(fired, state=STATE)) == []
    other = {"code": fired.state.models["chat"], "chat": fired.state.models["chat"]}
    both = {"code": idle, **fired.views}
    found = why(replace(fired, views=both, state=replace(STATE, models=other)))
    assert found == [(ReasonCode.EXCESS, "chat", ())], "one model does not end the search"


def derated(
    before: float, now: float, slowdown: float = 1.0, derated_ms: int = NOW
) -> TriggerInputs:
    news = targeted(8.0, 8.0, derate=now, slowdown=slowdown, derated_ms=derated_ms)
    was = replace(news.state.models["chat"], capacity=Capacity(derate=before))
    return replace(news, state=replace(STATE, models={"chat": was}))


def test_a_lower_derating_triggers_with_its_cause() -> None:
    assert why(derated(1.0, 0.8)) == [(ReasonCode.SLO_MISSED, "chat", (1.0, 0))]
    assert why(derated(1.0, 0.8, slowdown=1.4)) == [(ReasonCode.SLOW_ENGINES, "chat", (1.4,))]
    assert why(derated(0.8, 0.8)) == why(derated(0.5, 0.8)) == []
    assert why(replace(derated(1.0, 0.8), state=STATE)) == []


def test_a_gain_that_a_new_gpu_type_reduces_is_no_missed_slo() -> None:
    assert why(derated(1.4, 1.2, derated_ms=0)) == []


def offered(before: int | None, now: int, age_ms: int = 1) -> TriggerInputs:
    old = {} if before is None else {RENTED.id: Offer(before, NOW)}
    new = Supply(offers={RENTED.id: Offer(now, NOW + age_ms)})
    return replace(NEWS, supply=new, state=replace(STATE, supply=Supply(offers=old)))


@pytest.mark.parametrize(
    ("before", "now", "fires"),
    [(10, 8, False), (10, 7, True), (10, 12, False), (10, 13, True), (0, 0, False),
     (1, 0, True), (0, 1, True), (2, 1, True), (None, 4, False), (None, 2, True)],
)  # fmt: skip
def test_an_offer_triggers_if_it_changes_by_more_than_a_fifth(
    before: int | None, now: int, fires: bool
) -> None:
    """Before the first offer, a pool offers its declared maximum (4 nodes)."""
    was = RENTED.max_nodes if before is None else before
    expected = [(ReasonCode.AVAILABILITY, RENTED.id, (now, was))] if fires else []
    assert why(offered(before, now)) == expected


def test_offers_and_prices_of_each_pool_are_compared() -> None:
    two = replace(RENTED, name="second")
    cluster = replace(CLUSTER, pools=(RENTED, two))
    same = Offer(4, NOW)
    old = Supply(offers={RENTED.id: same, two.id: Offer(4, NOW)})
    new = Supply(
        offers={RENTED.id: same, two.id: Offer(1, NOW)}, prices={two.id: GoodPrice(16.0, NOW)}
    )
    news = replace(NEWS, cluster=cluster, supply=new, state=replace(STATE, supply=old))
    assert why(news) == [
        (ReasonCode.PRICE, two.id, (16.0, 8.0)),
        (ReasonCode.AVAILABILITY, two.id, (1, 4)),
    ]


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "fires"),
    [
        (1100.0, 181.0, True),
        (1100.0, 182.0, False),
        (1099.0, 181.0, False),
        (900.0, 221.0, True),
        (1100.0, 220.0, False),
    ],
)
def test_lengths_must_move_by_a_tenth_each(
    input_tokens: float, output_tokens: float, fires: bool
) -> None:
    estimate = DemandEstimate(Lengths(input_tokens, output_tokens))
    view = cast(ModelView, SimpleNamespace(state=ModelState(estimate)))
    known = FullPlans(asked_ms=(NOW,), last=LastRequest(lengths={"chat": BUCKET}))
    news = replace(NEWS, views={"code": view, "chat": view}, state=replace(STATE, full=known))
    tokens = (input_tokens, output_tokens, 1000.0, 200.0)
    assert why(news) == ([(ReasonCode.LENGTHS, "chat", tokens)] if fires else [])


def test_an_alert_carries_the_reports_of_three_engines() -> None:
    models = tuple(f"m{k}" for k in range(5))
    cluster = replace(CLUSTER, services=tuple(service(model) for model in models))
    engines = {model: EngineView(2.0, 7.0, NOW, "") for model in models[1:]}
    engines["m2"] = EngineView(error="no answer")
    news = replace(
        NEWS,
        cluster=cluster,
        state=replace(STATE, declared=Declared({s.model: s for s in cluster.services})),
        engines=engines,
        alerts=(Alert("f", "slow", "resolved", 1), Alert("g", "slow", "firing", 1, models)),
    )
    (trigger,) = collect(news, ())
    assert trigger.scope == models
    assert [(one.subject, one.quantities, one.quoted) for one in trigger.why.because] == [
        ("m1", (2.0, 7.0), ""),
        ("m2", (0.0, 0.0), "no answer"),
        ("m3", (2.0, 7.0), ""),
    ]


def test_changed_services_name_only_their_change() -> None:
    was = {"chat": service("chat"), "gone": service("gone")}
    now = (service("chat", mode=Mode.APPROVE, min_instances=2), service("new"))
    news = replace(
        NEWS,
        cluster=replace(CLUSTER, services=now),
        state=replace(STATE, declared=Declared(was)),
    )
    assert [(t.why.code, t.scope, t.why.subject) for t in collect(news, ())] == [
        (ReasonCode.SERVICE_CHANGED, ("chat",), "chat"),
        (ReasonCode.SERVICE_ADDED, ("new",), "new"),
        (ReasonCode.SERVICE_REMOVED, (), "gone"),
    ]
    first = replace(news, state=replace(STATE, declared=Declared({})))
    assert why(first) == [], "the first tick compares with nothing"


def test_a_failed_launch_triggers_for_its_model() -> None:
    failure = cast(Failure, SimpleNamespace(group=group(CHAT, 0, node(0)), node=node(0)))
    (trigger,) = collect(replace(NEWS, fleet=TriggerFleet(failures=(failure,))), ())
    assert trigger == Trigger(("chat",), Reason(ReasonCode.LAUNCH_FAILED, "chat", (node(0),)))


def test_the_end_of_a_switch_is_a_new_chance_for_another() -> None:
    idle, other = group(CHAT, 0, node(0)), group(CODE, 1, node(0))
    busy = replace(idle, switch=Switch(idle.name, idle.placed))
    known = FullPlans(asked_ms=(NOW,), last=LastRequest(switchable={CHAT.id: 2, CODE.id: 2}))

    def after(before: Any, now: Any, count: int = 1) -> list[str]:
        fleet = TriggerFleet(groups=(now, other), switchable={CHAT.id: count, CODE.id: 1})
        state = replace(STATE, groups=(before, other), full=known)
        return [one[1] for one in why(replace(NEWS, fleet=fleet, state=state))]

    assert after(busy, idle) == ["chat"]
    assert after(busy, busy) == after(idle, idle) == after(idle, busy) == []
    assert after(busy, idle, count=0) == []


def test_scattered_groups_are_named_with_the_models_of_their_pool() -> None:
    stay = (group(CHAT, 0, node(0)), group(CODE, 1, node(1)))
    left = group(CHAT, 2, node(0))
    fleet = TriggerFleet(groups=stay)
    news = replace(NEWS, fleet=fleet, state=replace(STATE, groups=(*stay, left)))
    (trigger,) = collect(news, ())
    assert trigger.scope == ("chat", "code")
    assert trigger.why.quantities == (2, 1)
    owned = replace(RENTED, market=Market.OWNED, price_usd_per_h=0.0)
    assert why(replace(news, cluster=replace(CLUSTER, pools=(owned,)))) == []


TRIED = partly_applied("chat", Reason(ReasonCode.PRICE, "x"))


def test_a_partly_applied_plan_waits_for_groups_that_make_room() -> None:
    def room(trigger: Trigger, *leaving: Any) -> bool:
        exits = tuple(replace(one, exit=RouteExit(yields=True)) for one in leaving)
        stays = group(CHAT, 5, node(2))
        return waits_for_room(trigger, (*exits, stays), {CHAT.id: CHAT, FAR.id: FAR})

    mine, neighbour, elsewhere = (
        group(CHAT, 0, node(0)),
        group(CODE, 1, node(0)),
        group(FAR, 2, "eu.far.on-demand.0"),
    )
    assert room(TRIED, mine) and room(TRIED, neighbour)
    assert not room(TRIED, elsewhere) and not room(TRIED)
    assert room(TRIED, elsewhere, neighbour)
    of_all = partly_applied("chat", of_all=True)
    assert room(of_all, elsewhere) and not room(of_all)
    assert not room(PRICE, mine), "only an unapplied plan waits for room"


FAR = combo("code", [(AGGREGATED, 1, replace(RENTED, region="eu", name="far"), 1, 10.0)])


def test_the_same_unapplied_plan_is_tried_again_after_half_a_minute_or_a_change() -> None:
    groups = (group(CHAT, 0, node(0)),)
    memory = FullPlans(
        asked_ms=(NOW - 60_000, NOW),
        last=LastRequest(already_tried=(TRIED.why.kind,), positions_digest=group_positions(groups)),
    )
    assert already_tried(TRIED, memory, groups, NOW + 29_999)
    assert not already_tried(TRIED, memory, groups, NOW + 30_000)
    assert not already_tried(partly_applied("code"), memory, groups, NOW + 1)
    assert not already_tried(PRICE, memory, groups, NOW + 1)
    assert not already_tried(TRIED, replace(memory, asked_ms=()), groups, NOW + 1)
    moved = (replace(groups[0], life=Life.RETIRING),)
    assert not already_tried(TRIED, memory, moved, NOW + 1)
    named = replace(memory.last, already_tried=(PRICE.why.kind,))
    assert not already_tried(PRICE, replace(memory, last=named), groups, NOW + 1)


def test_thresholds_rest_ten_minutes_or_one_window_of_drifted_scores() -> None:
    assert not thresholds_may_move(NOW, NOW + 599_999, drifted=False, window_s=60.0)
    assert thresholds_may_move(NOW, NOW + 600_000, drifted=False, window_s=60.0)
    assert not thresholds_may_move(NOW, NOW + 59_999, drifted=True, window_s=60.0)
    assert thresholds_may_move(NOW, NOW + 60_000, drifted=True, window_s=60.0)


@pytest.mark.parametrize(("since_s", "moved", "fires"), [
    (59.0, True, False), (60.0, True, True), (60.0, False, False), (9000.0, False, False)
])  # fmt: skip
def test_drifted_scores_trigger_after_one_local_window(
    since_s: float, moved: bool, fires: bool
) -> None:
    """Thresholds rest for one local window, here of a minute."""
    before, drifted = ScoreMix((0.5, 0.5), 0.0, 5000), ScoreMix((0.9, 0.1), 0.0, 5000)
    route = SimpleNamespace(name="auto", models=("chat", "code"), sampled=5000)
    route.mix = lambda classes: drifted if moved else before
    policy = replace(CLUSTER.policy, local_window_s=60)
    split = SimpleNamespace(target_cuts=(0.5,), mix=before, changed_ms=NOW - round(1000 * since_s))
    news = SimpleNamespace(
        state=SimpleNamespace(pending={}, splits={"auto": split}),
        cluster=SimpleNamespace(routes=(route,), policy=policy),
        demand={},
        now_ms=NOW,
    )
    found = list(scores_changed(cast(TriggerInputs, news)))
    reason = Reason(ReasonCode.SCORES, "auto")
    assert found == ([Trigger(("chat", "code"), reason)] if fires else [])


def test_triggers_forget_models_that_are_not_declared_any_more() -> None:
    pair = Trigger(("chat", "gone"), PRICE.why)
    gone = Trigger(("gone",), PRICE.why)
    assert declared_only((pair, gone, PRICE), ["chat"]) == (replace(pair, scope=("chat",)), PRICE)
    assert limited_to(["chat"], (pair, gone, PRICE)) == (
        replace(pair, scope=("chat",)),
        replace(PRICE, scope=("chat",)),
    )
    assert scope_of((pair,), ("code", "chat")) == ("chat",)


def test_exactly_fifty_triggers_keep_their_names() -> None:
    waiting = tuple(partly_applied(f"m{k}") for k in range(50))
    assert collect(NEWS, waiting) == waiting
    assert len(collect(NEWS, (*waiting, partly_applied("one more")))) == 51


def shared(**targets: float) -> list[tuple[ReasonCode, str, tuple[float, ...]]]:
    """Triggers of a fleet with a budget, planned for 8 req/s of each model."""
    policy = Policy(budget_usd_per_h=6.0, objective=Objective.THROUGHPUT)
    made = Fleet(rates=targets, policy=policy).build()
    planned = {model: Demand(model, 8.0, BUCKET, 1.0, ()) for model in targets}
    state = replace(STATE, models=made.models, evaluated=Evaluated(demands=planned))
    news = replace(NEWS, cluster=made.cluster, views=made.views, state=state)
    return [(one.why.code, one.why.subject, tuple(one.why.quantities)) for one in mix_changed(news)]


def test_shares_of_models_that_shift_trigger_a_plan_of_the_budget() -> None:
    assert shared(chat=24.0, code=8.0) == [(ReasonCode.MODEL_MIX, "chat", (0.75, 0.5))]
    assert shared(chat=16.0, code=16.0) == shared(chat=0.0, code=0.0) == []


def test_a_changed_mix_names_the_type_whose_share_grew_most() -> None:
    made = Fleet((group(CHAT, 0, node(0)),)).build()
    view, known = made.views["chat"], made.models["chat"]

    def mixed(state: ModelState, **shares: float) -> ModelState:
        return replace(state, estimate=replace(state.estimate, mix=tuple(shares.items())))

    views = {"chat": replace(view, state=mixed(view.state, read=0.2, write=0.5, code=0.3))}
    was = replace(STATE, models={"chat": mixed(known, read=0.6, write=0.4)})
    (found,) = mix_changed(replace(NEWS, views=views, state=was))
    assert found.scope == ("chat",)
    assert (found.why.code, found.why.names) == (ReasonCode.TYPE_MIX, ("code",))
    assert found.why.quantities == (0.3, 0.0)
