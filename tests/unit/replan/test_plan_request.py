"""Planner requests: models that need capacity at once, and the running fleet in a request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoscaler.domain.cluster import Mode, Policy
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand, Lengths
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.replan.plan_request import (
    full_request,
    managed_first,
    may_switch,
    models_below_target,
    urgent_request,
    within_deadline,
)
from autoscaler.rollout.backoff import Backoff
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.supply import GoodPrice, Offer, Supply
from autoscaler.state.controller_state import Pending
from autoscaler.state.model_state import (
    Advisory,
    Capacity,
    Infeasibility,
    Target,
)
from autoscaler.state.replan_trigger import Trigger, partly_applied
from tests.unit.decide.decide_catalogue import (
    BUCKET,
    DECODE,
    PREFILL,
    combo,
    service,
)
from tests.unit.replan.planned_fleet import CHAT, CODE, NOW, OWN, OWNED, RENTED, Fleet, group, node
from topics.reason_codes import ReasonCode

ONE_EACH = (group(CHAT, 0, node(0)), group(CODE, 1, node(0)))
EXCESS = Trigger(("chat",), Reason(ReasonCode.EXCESS, "chat"))
PRICE = Trigger((), Reason(ReasonCode.PRICE, RENTED.id))
ADVICE = service("code", mode=Mode.RECOMMEND)


def below(**changes: Any) -> tuple[str, ...]:
    return models_below_target(Fleet(**{"groups": ONE_EACH, **changes}).build())


def full(scope: tuple[str, ...] = ("chat", "code"), **changes: Any) -> PlanRequest:
    made = Fleet(**{"groups": ONE_EACH, **changes}).build()
    return full_request(7, made, scope, (PRICE,), ()).request


def urgent(scope: tuple[str, ...] = ("chat", "code"), **changes: Any) -> PlanRequest:
    made = Fleet(**{"groups": ONE_EACH, **changes}).build()
    return urgent_request(7, made, scope).request


@pytest.mark.parametrize(
    ("rate", "models"),
    [(8.0, ()), (8.0 / 0.976, ()), (8.0 / 0.974, ("chat",)), (0.0, ())],
)
def test_a_model_is_below_target_beyond_a_small_tolerance(
    rate: float, models: tuple[str, ...]
) -> None:
    assert (
        below(rates={"chat": rate, "code": 8.0}, evaluated=demands(chat=max(rate, 1e-9))) == models
    )


def demands(**rates: float) -> dict[str, Demand]:
    every = {"chat": 8.0, "code": 8.0, **rates}
    return {model: Demand(model, rate, BUCKET, 1.0, ()) for model, rate in every.items()}


def test_a_model_below_its_floor_needs_capacity_at_any_rate() -> None:
    two = (service("chat", min_instances=2), service("code"))
    assert below(services=two) == ("chat",)
    assert below(services=two, groups=(group(CHAT, 2, node(1)), *ONE_EACH)) == ()


@pytest.mark.parametrize(
    ("evaluated", "stale"),
    [
        ({"req_per_s": 8.0}, False),
        ({"req_per_s": 8.0 * 1.49}, False),
        ({"req_per_s": 8.0 * 1.51}, True),
        ({"req_per_s": 8.0 / 1.49}, False),
        ({"req_per_s": 8.0 / 1.51}, True),
        ({"lengths": Lengths(1000.0, 201.0)}, True),
        ({"arrival_cv": 1.1}, True),
        (None, True),
    ],
)
def test_combos_of_another_demand_are_evaluated_again(
    evaluated: dict[str, Any] | None, stale: bool
) -> None:
    """Capacity depends on lengths, burstiness and the rate, which a factor of 1.5 changes much."""
    known = demands()
    if evaluated is None:
        del known["chat"]
    else:
        known["chat"] = replace(known["chat"], **evaluated)
    assert below(evaluated=known) == (("chat",) if stale else ())


def test_the_evaluated_rate_is_that_of_predicted_capacity() -> None:
    """At a derating of one half, a target of 4 req/s needs the capacity of 8 req/s."""
    half = {"chat": {"capacity": Capacity(derate=0.5)}}
    rates = {"chat": 4.0, "code": 8.0}
    assert below(rates=rates, changes=half, evaluated=demands(chat=8.0)) == ()
    assert below(rates=rates, changes=half, evaluated=demands(chat=4.0)) == ("chat",)


def test_a_model_without_groups_is_not_evaluated_again() -> None:
    idle = (service("chat", min_instances=0), service("code"))
    none = {"groups": ONE_EACH[1:], "services": idle, "evaluated": demands(chat=99.0)}
    assert below(rates={"chat": 0.0, "code": 8.0}, **none) == ()
    assert below(rates={"chat": 0.1, "code": 8.0}, **none) == ("chat",)


def waiting(retry_s: float, attempted: float = 20.0) -> dict[str, Any]:
    refused = Infeasibility(attempted, NOW + int(retry_s * 1000), True)
    return {"infeasibility": refused}


@pytest.mark.parametrize(
    ("retry_s", "attempted", "asks"),
    [(1.0, 20.0, False), (0.0, 20.0, True), (1.0, 19.1, False), (1.0, 19.0, True)],
)
def test_a_model_without_more_capacity_waits_until_its_target_rises(
    retry_s: float, attempted: float, asks: bool
) -> None:
    """5% more than the refused rate do not count as a rise."""
    found = below(
        rates={"chat": 20.0, "code": 8.0},
        evaluated=demands(chat=20.0),
        changes={"chat": waiting(retry_s, attempted)},
    )
    assert found == (("chat",) if asks else ())


def test_a_waiting_model_joins_the_request_of_another_one() -> None:
    """So that free capacity is assigned by priority."""
    low = {"chat": 20.0, "code": 20.0}
    known = demands(**low)
    changes = {"chat": waiting(60.0)}
    assert below(rates=low, evaluated=known, changes=changes) == ("chat", "code")
    apart = (service("chat"), ADVICE)
    assert below(rates=low, evaluated=known, changes=changes, services=apart) == ("code",)


def test_an_unmet_floor_alone_waits_too() -> None:
    two = (service("chat", min_instances=2), service("code"))
    assert below(services=two, changes={"chat": waiting(60.0, attempted=1.0)}) == ()


def test_a_model_that_waits_for_room_is_left_to_a_full_plan() -> None:
    low = {"rates": {"chat": 20.0, "code": 8.0}, "evaluated": demands(chat=20.0)}
    for until_s, found in ((1, ()), (0, ("chat",))):
        room = Infeasibility(preemption_until_ms=NOW + 1000 * until_s)
        assert below(**low, changes={"chat": {"infeasibility": room}}) == found


def test_managed_models_are_planned_before_recommended_ones() -> None:
    apart = (service("chat"), ADVICE)
    low = {"chat": 20.0, "code": 20.0}
    assert below(rates=low, evaluated=demands(**low), services=apart) == ("chat",)
    fine = {"chat": 8.0, "code": 20.0}
    assert below(rates=fine, evaluated=demands(**fine), services=apart) == ("code",)
    made = Fleet(services=apart).build()
    assert managed_first(("code", "chat"), made, advise=False) == ("chat",)
    assert managed_first(("code", "chat"), made, advise=True) == ("code",)
    assert managed_first(("chat",), made, advise=True) == ("chat",)


def test_a_model_with_uncounted_servers_waits() -> None:
    theirs = service("code", mode=Mode.RECOMMEND, unmanaged=CODE.id)
    changes = {"code": {"advisory": Advisory(unmanaged=None)}}
    low = {"rates": {"chat": 8.0, "code": 20.0}, "evaluated": demands(code=20.0)}
    assert below(services=(service("chat"), theirs), changes=changes, **low) == ()
    changes = {"code": {"advisory": Advisory(unmanaged=())}}
    assert below(services=(service("chat"), theirs), changes=changes, **low) == ("code",)


def test_requests_name_demand_prices_and_floors() -> None:
    made = full(supply=Supply(prices={RENTED.id: GoodPrice(9.5, NOW)}))
    assert (made.number, made.urgency, made.at_ms) == (7, Urgency.FULL, NOW)
    assert [d.model for d in made.demands] == ["chat", "code"]
    assert made.prices_usd_per_h == ((RENTED.id, 9.5),)
    assert made.scope == ("chat", "code") and made.floors == ()


@pytest.mark.parametrize(
    ("target", "derate", "planned_for"),
    [
        (20.0, 1.0, 20.0),
        (20.0, 0.5, 40.0),
        (8.0, 1.0, 7.8),
        (8.2, 1.0, 8.2 * 0.975),
        (4.0, 0.5, 7.8),
    ],
)
def test_the_demand_of_covered_models_is_within_their_capacity(
    target: float, derate: float, planned_for: float
) -> None:
    """The tolerance of a covered target must not cause a change of counts."""
    made = full(
        rates={"chat": target, "code": 8.0}, changes={"chat": {"capacity": Capacity(derate=derate)}}
    )
    assert made.demands[0].req_per_s == pytest.approx(planned_for)


def test_the_fleet_of_a_request_counts_what_serves_or_starts() -> None:
    """Groups that leave, have failed or are on lost nodes are no capacity."""
    leaving = replace(group(CHAT, 2, node(1)), life=Life.DRAINING)
    failed = replace(group(CHAT, 3, node(1)), failed_ms=NOW)
    lost = group(CHAT, 4, node(2))
    made = full(groups=(*ONE_EACH, leaving, failed, lost), silent=frozenset({node(2)}))
    assert dict(made.fleet) == {CHAT.id: 1, CODE.id: 1}
    assert [g.name for g in made.groups] == [g.name for g in ONE_EACH]
    assert dict(made.leaving_gpus) == {RENTED.id: 2}, "the GPU of the lost node is out of reach"
    assert dict(made.rented_nodes) == {RENTED.id: 2}
    assert dict(made.unusable_nodes) == {RENTED.id: 1}


def test_gpus_of_leaving_groups_count_on_unusable_nodes_that_still_serve() -> None:
    leaving = replace(group(CHAT, 2, node(0)), life=Life.DRAINING)
    alone = replace(group(CHAT, 3, node(1)), life=Life.DRAINING)
    ill = {node(0): Backoff(RENTED.id, NOW + 1, 1), node(1): Backoff(RENTED.id, NOW + 1, 1)}
    made = full(groups=(*ONE_EACH, leaving, alone), backoff=ill)
    assert dict(made.leaving_gpus) == {RENTED.id: 1}
    assert dict(made.rented_nodes) == {RENTED.id: 1}
    assert dict(made.unusable_nodes) == {RENTED.id: 1}
    well = full(groups=(*ONE_EACH, leaving, alone))
    assert dict(well.leaving_gpus) == {RENTED.id: 2} and well.unusable_nodes == ()
    assert dict(well.rented_nodes) == {RENTED.id: 2}
    assert full().leaving_gpus == ()


def test_owned_nodes_are_not_on_the_bill() -> None:
    own = group(OWN, 2, node(0, "own.owned"))
    made = full(groups=(*ONE_EACH, own))
    assert dict(made.rented_nodes) == {RENTED.id: 1}
    assert dict(made.fleet) == {CHAT.id: 1, CODE.id: 1, OWN.id: 1}


def test_all_nodes_of_a_full_pool_without_capacity_are_unusable() -> None:
    shut = {node(3): Backoff(RENTED.id, NOW + 1, 1, pool_full=True)}
    assert dict(full(backoff=shut).unusable_nodes) == {RENTED.id: 3}
    over = {node(3): Backoff(RENTED.id, NOW, 1, pool_full=True)}
    assert full(backoff=over).unusable_nodes == ()


def test_all_nodes_of_an_unreachable_pool_are_unusable() -> None:
    groups = (*ONE_EACH, group(CHAT, 2, node(1)))
    made = full(groups=groups, silent=frozenset({node(0), node(1)}))
    assert dict(made.unusable_nodes) == {RENTED.id: 4, OWNED.id: 2}


def test_reclaimed_nodes_get_no_launch() -> None:
    groups = (*ONE_EACH, replace(group(CHAT, 2, node(1)), life=Life.DRAINING))
    made = full(groups=groups, reclaimed=frozenset({node(1)}))
    assert dict(made.unusable_nodes) == {RENTED.id: 1}


def test_obtainable_nodes_are_those_offered_and_none_in_closed_pools() -> None:
    offered = Supply(offers={RENTED.id: Offer(3, NOW)})
    assert dict(full(supply=offered).obtainable) == {RENTED.id: 3}
    strikes = {node(k): Backoff(RENTED.id, NOW + 1, 1) for k in range(4)}
    assert dict(full(supply=offered, backoff=strikes).obtainable) == {RENTED.id: 0}
    old = {node(k): Backoff(RENTED.id, NOW - 1, 1) for k in range(4)}
    assert dict(full(supply=offered, backoff=old).obtainable) == {RENTED.id: 3}


def test_a_recommended_model_is_planned_from_its_recommendation() -> None:
    """Outside of the scope, its servers that Shoal did not start still occupy nodes."""
    theirs = service("code", mode=Mode.RECOMMEND, unmanaged=CODE.id)
    told = Advisory(recommended=((CODE.id, 3),), unmanaged=((CODE.id, 2),))
    changes = {"code": {"advisory": told}}
    services = (service("chat"), theirs)
    both: dict[str, Any] = {"services": services, "changes": changes, "groups": ONE_EACH[:1]}
    assert dict(full(scope=("code",), **both).fleet) == {CHAT.id: 1, CODE.id: 3}
    assert dict(full(scope=("chat",), **both).fleet) == {CHAT.id: 1, CODE.id: 2}
    assert dict(full(**both).rented_nodes) == {RENTED.id: 2}, "one group and two servers"
    own = (*ONE_EACH, group(CODE, 5, node(1)))
    assert dict(full(scope=("code",), **{**both, "groups": own}).fleet)[CODE.id] == 3


def test_running_groups_tell_the_planner_what_it_may_exchange() -> None:
    groups = (*ONE_EACH, group(CHAT, 2, node(1), age_s=30.0), group(CHAT, 3, node(0)))
    starting = frozenset({groups[2].name})
    found = {g.name: g for g in full(groups=groups, starting=starting).groups}
    assert [found[g.name].neighbours for g in groups] == [2, 2, 0, 2]
    assert [found[g.name].is_ready for g in groups] == [True, True, False, True]
    assert [NOW - found[g.name].created_ms for g in groups] == [3.6e6, 3.6e6, 30_000, 3.6e6]
    assert {g.combo_id for g in full(scope=("code",), groups=groups).groups} == {CODE.id}
    assert full(scope=("code",), services=(service("chat"), ADVICE)).groups == ()


@pytest.mark.parametrize(("age_s", "settles"), [(599.0, True), (600.0, False)])
def test_groups_settle_until_scale_in_after(age_s: float, settles: bool) -> None:
    slow = service("chat", scale_in_after_s=600.0)
    young = group(CHAT, 2, node(1), age_s)
    gone = replace(group(CHAT, 3, node(1), age_s), life=Life.RETIRING)
    settings: dict[str, Any] = {
        "groups": (*ONE_EACH, young, gone),
        "services": (slow, service("code")),
    }
    expected = ((CHAT.id, 1),) if settles else ()
    assert full(**settings).settling == expected == urgent(**settings).settling
    assert full(scope=("code",), **settings).settling == ()


def test_an_urgent_request_only_adds_to_models_that_may_not_shrink() -> None:
    held = {"chat": Reason(ReasonCode.PERIOD, "chat")}
    assert urgent().scale_in_locked == ()
    assert urgent(frozen=held).scale_in_locked == ("chat",)
    asks = (service("chat", mode=Mode.APPROVE), service("code"))
    assert urgent(services=asks).scale_in_locked == ("chat",)
    pending = urgent_request(7, Fleet(ONE_EACH).build(), ("chat",))
    assert pending.reasons == ()
    why = Reason(ReasonCode.WAKE, "chat")
    told = Fleet(ONE_EACH, changes={"chat": {"target": Target(8.0, why=why)}}).build()
    assert urgent_request(7, told, ("chat", "code")).reasons == (why,)


def test_a_full_request_keeps_models_without_evidence_for_less() -> None:
    """No telemetry is no evidence. If a model is below target, or a budget is spent, the plan may
    exchange capacity."""
    assert full().scale_in_locked == ("chat", "code")
    assert full(scope=("code",)).scale_in_locked == ("code",)
    assert full(rates={"chat": 20.0, "code": 8.0}).scale_in_locked == ()


@pytest.mark.parametrize(
    ("triggers", "removals_only", "surge_only"),
    [
        ((EXCESS,), True, False),
        ((EXCESS, PRICE), False, False),
        ((PRICE,), False, False),
        ((partly_applied("chat"),), False, True),
        ((partly_applied("chat"), PRICE), False, False),
    ],
)
def test_triggers_restrict_a_full_plan(
    triggers: tuple[Trigger, ...], removals_only: bool, surge_only: bool
) -> None:
    made = full_request(7, Fleet(ONE_EACH).build(), ("chat", "code"), triggers, ())
    assert made.request.removals_only is removals_only
    assert made.request.surge_only is surge_only
    assert made.reasons == tuple(trigger.why for trigger in triggers)
    low = Fleet(ONE_EACH, rates={"chat": 20.0, "code": 8.0}).build()
    assert not full_request(7, low, ("chat",), triggers, ()).request.surge_only


PAIR = combo("chat", [(PREFILL, 1, RENTED, 1, 30.0), (DECODE, 1, RENTED, 1, 10.0)])


def test_role_switches_need_spare_capacity() -> None:
    """Of three groups of 10 req/s one may stop serving if the others cover the target."""
    groups = tuple(group(PAIR, k, node(k)) for k in range(3))
    for rate, spare in ((16.0, 1), (8.0, 2), (16.1, 0), (0.0, 2)):
        made = switching(groups, rate).build()
        assert may_switch(made, ("chat",)) == (((PAIR.id, spare),) if spare else ())
        assert sum(g.may_switch for g in full_of(made).groups) == spare
        assert full_of(made).switchable == may_switch(made, ("chat", "code"))
        assert may_switch(made, ("code",)) == ()
    broken = replace(group(PAIR, 9, node(3)), failed_ms=NOW)
    assert may_switch(switching((*groups[:2], broken), 16.0).build(), ("chat",)) == ()


def test_nothing_switches_roles_if_it_is_not_allowed_or_nothing_may_leave() -> None:
    groups = tuple(group(PAIR, k, node(k)) for k in range(3))
    off = replace(switching(groups, 16.0), policy=Policy(role_switch=False))
    assert may_switch(off.build(), ("chat",)) == ()
    held = {model: Reason(ReasonCode.PERIOD, model) for model in ("chat", "code")}
    assert may_switch(replace(switching(groups, 16.0), frozen=held).build(), ("chat",)) == ()
    told = {"code": {"advisory": Advisory(recommended=((CODE.id, 3),))}}
    advice = replace(switching(groups, 16.0), services=(service("chat"), ADVICE), changes=told)
    assert may_switch(advice.build(), ("chat", "code")) == ((PAIR.id, 1), (CODE.id, 3))
    assert may_switch(replace(advice, frozen=held).build(), ("code",)) == ()


def switching(groups: tuple[ServingGroup, ...], rate: float) -> Fleet:
    """Groups of a prefill and a decode instance at a target of `rate`."""
    return Fleet(groups, rates={"chat": rate, "code": 8.0}, combos=(PAIR, CODE))


def full_of(made: Any) -> PlanRequest:
    return full_request(7, made, ("chat", "code"), (PRICE,), ()).request


@pytest.mark.parametrize(("urgency", "limit_s"), [(Urgency.URGENT, 120), (Urgency.FULL, 1800)])
def test_a_request_without_an_answer_is_given_up(urgency: Urgency, limit_s: int) -> None:
    made = replace(full(), urgency=urgency)
    pending = {urgency: Pending(made, ())}
    assert within_deadline(pending, NOW + limit_s * 1000 - 1) == pending
    assert within_deadline(pending, NOW + limit_s * 1000) == {}
