"""Triggers of full plans are merged, limited in number, and name their models."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autoscaler.domain.cluster import Cluster, Market, Mode, Policy
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Lengths, Phase
from autoscaler.replan.rate_limit import MOST, WITHIN_MS, plan_allowed
from autoscaler.replan.trigger_inputs import TriggerFleet, TriggerInputs
from autoscaler.replan.triggers import remember_switchable
from autoscaler.replan.waiting_triggers import collect, scope_of
from autoscaler.rollout.serving_group import Placed, ServingGroup
from autoscaler.rollout.supply import GoodPrice, Offer, Supply
from autoscaler.state.controller_state import (
    ControllerState,
    Declared,
    FullPlans,
    LastRequest,
    Term,
)
from autoscaler.state.model_state import DemandEstimate, ModelState
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger, partly_applied
from tests.unit.decide.decide_catalogue import pool, service
from topics.alerts import Alert
from topics.reason_codes import ReasonCode

NOW = 1_700_000_000_000
POOL = pool(usd=8.0)
WIDER = {"min_instances": 3, "max_instances": 5}
CLUSTER = Cluster((POOL,), (service("chat"), service("code")), Policy())
STATE = ControllerState(
    term=Term(started_ms=NOW),
    declared=Declared(services={s.model: s for s in CLUSTER.services}),
    full=FullPlans(asked_ms=(NOW,)),
)
NEWS = TriggerInputs(NOW + 1000, STATE, CLUSTER, Supply(), {})


def names(news: TriggerInputs) -> list[str]:
    return [trigger.why.code for trigger in collect(news, ())]


def test_an_unchanged_state_is_no_trigger() -> None:
    assert names(NEWS) == []


def test_a_price_is_compared_with_that_of_the_last_plan() -> None:
    """A price 19% above that of the last plan triggers nothing, but 21% does. A price that the last
    plan already used triggers nothing.
    """

    def priced(usd: float, planned: float = 8.0) -> TriggerInputs:
        supply = Supply(prices={POOL.id: GoodPrice(usd, NOW)})
        known = replace(STATE, full=FullPlans(last=LastRequest(usd_per_h={POOL.id: planned})))
        return replace(NEWS, supply=supply, state=known)

    assert names(priced(8.0 * 1.19)) == []
    assert names(priced(8.0 * 1.21)) == names(priced(8.0 * 0.79)) == ["price"]
    assert names(priced(16.0, planned=16.0)) == []


def test_an_offer_triggers_if_it_begins_ends_or_changes_much() -> None:
    def offered(before: int, now: int) -> TriggerInputs:
        old = replace(STATE, supply=Supply(offers={POOL.id: Offer(before, NOW)}))
        return replace(NEWS, state=old, supply=Supply(offers={POOL.id: Offer(now, NOW + 1)}))

    assert names(offered(0, 1)) == names(offered(1, 0)) == names(offered(10, 5)) == ["availability"]
    assert names(offered(10, 9)) == names(offered(0, 0)) == []
    reasons = [collect(offered(0, nodes), ())[0].why for nodes in (1, 2)]
    assert [(why.subject, why.quantities) for why in reasons] == [
        (POOL.id, (1, 0)),
        (POOL.id, (2, 0)),
    ]


def test_the_period_counts_from_the_last_request() -> None:
    """The period does not count from the answer, so no second plan is requested during a slow
    solve.
    """
    assert names(replace(NEWS, now_ms=NOW + 299_000)) == []
    assert names(replace(NEWS, now_ms=NOW + 300_000)) == ["period"]
    asked = replace(STATE, full=FullPlans(asked_ms=(NOW, NOW + 300_000)))
    assert names(replace(NEWS, now_ms=NOW + 310_000, state=asked)) == []


def test_a_firing_alert_triggers_and_a_resolved_one_does_not() -> None:
    fired = Alert("f", "slow", "firing", 1, ("code",))
    (trigger,) = collect(replace(NEWS, alerts=(fired,)), ())
    assert trigger == Trigger(("code",), Reason(ReasonCode.ALERT, "slow"))
    assert names(replace(NEWS, alerts=(replace(fired, state="resolved"),))) == []
    assert names(replace(NEWS, alerts=(replace(fired, models=("nobody",)),))) == []


def test_lost_and_returned_nodes_are_one_trigger_each() -> None:
    lost = frozenset(f"n{k}" for k in range(5))
    (trigger,) = collect(replace(NEWS, fleet=TriggerFleet(lost=lost)), ())
    named = ("n0", "n1", "n2")
    assert trigger == Trigger((), Reason(ReasonCode.NODE_LOST, "*", named, (5,)))
    back = replace(
        NEWS, state=replace(STATE, observed=replace(STATE.observed, lost_nodes=frozenset({"n7"})))
    )
    came = Reason(ReasonCode.NODE_BACK, "*", ("n7",), (1,))
    assert [t.why for t in collect(back, ())] == [came]


def test_a_waiting_trigger_is_kept_once_with_its_latest_figures() -> None:
    period = Reason(ReasonCode.PERIOD, "*", quantities=(300.0,))
    waiting = (Trigger((), Reason(ReasonCode.ALERT, "old")), Trigger((), period))
    news = replace(NEWS, alerts=(Alert("f", "new", "firing", 1),))
    kept = collect(news, waiting)
    assert [t.why for t in kept] == [Reason(ReasonCode.ALERT, "new"), period]


def test_too_many_triggers_become_one_plan_of_all_models() -> None:
    waiting = tuple(partly_applied(f"m{k}") for k in range(80))
    kept = collect(NEWS, waiting)
    assert len(kept) == 51 and kept[-1].why.code is ReasonCode.MORE
    assert collect(NEWS, kept) == kept, "while they wait it stays as it is"
    assert collect(NEWS, (*kept, partly_applied("other"))) == kept


def test_a_shift_of_request_lengths_triggers_a_full_plan() -> None:
    """A trigger needs a large change since the last full plan: shorter prompts and longer answers,
    or the reverse. There is none if both grow, only one changes, or both change little.
    """

    def moved(input_tokens: float, output_tokens: float) -> TriggerInputs:
        now = SimpleNamespace(
            state=ModelState(DemandEstimate(Lengths(input_tokens, output_tokens)))
        )
        known = replace(
            STATE, full=FullPlans(last=LastRequest(lengths={"chat": Lengths(6000.0, 150.0)}))
        )
        return replace(NEWS, state=known, views={"chat": cast(ModelView, now)})

    assert names(moved(7000.0, 200.0)) == names(moved(6000.0, 200.0)) == []
    assert names(moved(6000.0, 150.0)) == names(moved(5500.0, 160.0)) == []
    (trigger,) = collect(moved(2000.0, 400.0), ())
    assert (trigger.why.code, trigger.scope) == (ReasonCode.LENGTHS, ("chat",))
    assert names(moved(9000.0, 90.0)) == ["lengths"]


def test_more_possible_role_switches_trigger_one_plan() -> None:
    """The count is compared with that of the last plan for the model. Plans for other models do not
    change it.
    """
    pair, other = f"chat:p1@{POOL.id}+d1@{POOL.id}", f"code:p1@{POOL.id}+d1@{POOL.id}"

    def may(count: int, planned: dict[str, int]) -> list[Trigger]:
        known = replace(STATE, full=FullPlans(last=LastRequest(switchable=planned)))
        return list(
            collect(replace(NEWS, state=known, fleet=TriggerFleet(switchable={pair: count})), ())
        )

    assert may(1, {pair: 1}) == may(1, {pair: 2}) == []
    assert [(t.why.code, t.scope) for t in may(1, {})] == [(ReasonCode.ROLES, ("chat",))]
    assert [t.why.code for t in may(2, {pair: 1, other: 9})] == [ReasonCode.ROLES]
    assert remember_switchable({pair: 2, other: 1}, {pair: 1, other: 3}, ["chat"]) == {
        pair: 1,
        other: 1,
    }
    assert remember_switchable({pair: 2}, {}, ["chat"]) == {}


def test_at_most_six_full_plans_in_any_minute() -> None:
    asked = tuple(NOW + k for k in range(MOST))
    assert plan_allowed(asked[:-1], NOW + 10) and not plan_allowed(asked, NOW + 10)
    assert not plan_allowed(asked, NOW + WITHIN_MS - 1) and plan_allowed(asked, NOW + WITHIN_MS)


def test_the_scope_covers_the_models_of_all_triggers() -> None:
    models = ("chat", "code", "mini")
    one = Trigger(("mini",), Reason(ReasonCode.SLO_MISSED, "mini"))
    other = Trigger(("chat",), Reason(ReasonCode.ALERT, "slow"))
    assert scope_of((one, other), models) == ("chat", "mini")
    assert scope_of((one, Trigger((), Reason(ReasonCode.PRICE, POOL.id))), models) == models
    assert scope_of((), models) == ()


def test_a_group_that_left_a_rented_node_triggers_a_consolidation() -> None:
    """The trigger occurs only in the tick in which the group left, and only if fewer nodes are
    enough.
    """

    def at(model: str, node: str, gpu: int) -> ServingGroup:
        name = f"{model}:{node}:{gpu}"
        placed = Placed(name, Phase.AGGREGATED, node, POOL.id, (gpu,))
        return ServingGroup(name, model, f"{model}:x", "", (placed,), 1)

    def left(before: tuple[ServingGroup, ...], after: tuple[ServingGroup, ...]) -> TriggerInputs:
        return replace(
            NEWS,
            cluster=cluster,
            state=replace(STATE, groups=before),
            fleet=TriggerFleet(groups=after),
        )

    cluster = replace(CLUSTER, pools=(replace(POOL, per_node=2),))
    chat, code, far = at("chat", "a", 0), at("code", "a", 1), at("code", "b", 0)
    (trigger,) = collect(left((chat, code, far), (code, far)), ())
    assert trigger == Trigger(("code",), Reason(ReasonCode.SCATTERED, POOL.id, quantities=(2, 1)))
    assert names(left((code, far), (code, far))) == []
    assert names(left((chat, code, far), (chat, far))) == ["scattered"]
    assert names(left((chat, code, far), (chat, code))) == []
    owned = replace(cluster, pools=(replace(cluster.pools[0], market=Market.OWNED),))
    assert names(replace(left((chat, code, far), (code, far)), cluster=owned)) == []


@pytest.mark.parametrize(
    ("before", "now", "code"),
    [
        (
            {"max_instances": 1},
            {"min_instances": 3, "max_instances": 5},
            ReasonCode.SERVICE_CHANGED,
        ),
        (
            {"min_instances": 3, "max_instances": 5},
            {"max_instances": 1},
            ReasonCode.SERVICE_CHANGED,
        ),
        ({}, {"min_instances": 3}, ReasonCode.SERVICE_FLOOR),
        ({}, {"mode": Mode.RECOMMEND}, ReasonCode.SERVICE_MODE),
    ],
)
def test_every_change_of_a_service_triggers_a_plan(
    before: dict[str, Any], now: dict[str, Any], code: ReasonCode
) -> None:
    state = replace(
        STATE, declared=replace(STATE.declared, services={"chat": service("chat", **before)})
    )
    cluster = replace(CLUSTER, services=(service("chat", **now),))
    (trigger,) = collect(replace(NEWS, state=state, cluster=cluster), ())
    assert (trigger.why.code, trigger.why.subject) == (code, "chat")
