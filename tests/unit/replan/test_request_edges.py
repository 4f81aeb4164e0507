"""Edges of the conditions under which models are planned again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from autoscaler.domain.cluster import Mode
from autoscaler.domain.component_graph import ComponentGraph
from autoscaler.replan.plan_request import models_below_target
from autoscaler.replan.trigger_inputs import TriggerInputs
from autoscaler.replan.waiting_triggers import collect
from autoscaler.rollout.supply import Offer, Supply
from autoscaler.state.model_state import DemandEstimate, Infeasibility
from tests.unit.decide.decide_catalogue import BUCKET, service
from tests.unit.replan.planned_fleet import CHAT, CODE, NOW, RENTED, Fleet, group, node
from tests.unit.replan.test_plan_request import demands
from tests.unit.replan.test_trigger_conditions import NEWS, STATE
from topics.reason_codes import ReasonCode

ONE_EACH = (group(CHAT, 0, node(0)), group(CODE, 1, node(0)))
PHOTOS = (("photo", 0.3),)


def below(**changes: Any) -> tuple[str, ...]:
    return models_below_target(Fleet(**{"groups": ONE_EACH, **changes}).build())


def test_a_model_of_components_is_evaluated_again_for_another_mix() -> None:
    """The capacity of its combos depends on the shares of the request types."""
    graph = cast(ComponentGraph, object())
    for parts, mix, stale in (
        (graph, PHOTOS, True),
        (graph, (), False),
        (None, PHOTOS, False),
    ):
        services = (service("chat", graph=parts), service("code"))
        changes = {"chat": {"estimate": DemandEstimate(BUCKET, mix=mix)}}
        found = below(services=services, changes=changes, evaluated=demands())
        assert found == (("chat",) if stale else ())


def test_rates_below_one_request_in_a_thousand_seconds_count_as_equal() -> None:
    """The rate matters by a factor of 1.5, which means nothing near 0."""
    for rate, stale in ((0.0014, False), (0.0016, True)):
        asked = {"rates": {"chat": rate, "code": 8.0}, "evaluated": demands(chat=0.0)}
        assert below(**asked) == (("chat",) if stale else ())


def test_a_rise_of_exactly_five_percent_is_no_rise() -> None:
    refused = {"infeasibility": Infeasibility(20.0, NOW + 1, True)}
    rates = {"chat": 21.0, "code": 8.0}
    assert below(rates=rates, evaluated=demands(chat=21.0), changes={"chat": refused}) == ()


def test_a_recommended_model_that_waits_does_not_join_managed_ones() -> None:
    """Nor the reverse, even if its own target rose before."""
    apart = (service("chat", mode=Mode.RECOMMEND), service("code"))
    low = {"chat": 20.0, "code": 20.0}
    refused = {"infeasibility": Infeasibility(20.0, NOW + 60_000, True)}
    asked = {"rates": low, "evaluated": demands(**low), "services": apart}
    assert below(changes={"chat": refused}, **asked) == ("code",)
    assert below(changes={"code": refused}, **asked) == ("chat",)


def offers(before: int | None, now: int | None) -> TriggerInputs:
    """An offer, and one of a later reading."""
    old = {} if before is None else {RENTED.id: Offer(before, NOW)}
    new = {} if now is None else {RENTED.id: Offer(now, NOW + 1)}
    state = replace(STATE, supply=Supply(offers=old))
    return replace(NEWS, supply=Supply(offers=new), state=state)


def test_only_a_change_of_an_offer_is_news() -> None:
    for before, now in ((1, 1), (0, 0), (4, 4), (4, None), (None, None)):
        assert collect(offers(before, now), ()) == ()
    (trigger,) = collect(offers(2, 1), ())
    assert trigger.why.code is ReasonCode.AVAILABILITY
