"""A planner answer is applied to the present fleet: additions at once, removals with evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from autoscaler.apply.approvals import resolve_approvals
from autoscaler.apply.fleet_changes import AppliedPlan
from autoscaler.apply.model_change import after_change, kind_of
from autoscaler.apply.plan_answer import apply_answer
from autoscaler.domain.cluster import Mode, Policy
from autoscaler.domain.reason import Reason
from autoscaler.domain.workload import Demand
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.windows import GatewayReport, Stats
from autoscaler.planning.planner_messages import (
    FleetChange,
    Outcome,
    PlanAnswer,
    PlanRequest,
    Urgency,
)
from autoscaler.rollout.bin_packing import used_gpus
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import Life
from autoscaler.sizing.scale_in.removal import is_exchange, scale_in_veto
from autoscaler.state.controller_state import Pending
from autoscaler.state.model_state import (
    Advisory,
    Capacity,
    Hysteresis,
    Infeasibility,
    PendingApproval,
    Reversals,
)
from tests.unit.decide.decide_catalogue import BUCKET, service
from tests.unit.replan.planned_fleet import CHAT, CODE, NOW, RENTED, Fleet, group, node
from tests.unit.sizing.target_views import stats
from topics.controls import Control
from topics.reason_codes import ReasonCode

TWO = (group(CHAT, 0, node(0)), group(CHAT, 1, node(0)), group(CODE, 2, node(0)))
PERIOD = Reason(ReasonCode.PERIOD, "*")


def calm(rate: float) -> ModelDemand:
    """Half an hour at `rate`, all within the SLO."""
    blocks = tuple((10, round(10 * rate)) for _ in range(180))
    recent = tuple((n, round(rate * n)) for n in (1, 2, 5, 10, 30, 60))
    heard = GatewayReport("a", "boot", NOW, 0, 0)
    local = stats(round(rate * 120), 120)
    return ModelDemand(recent, local, blocks=blocks, reported_ms=NOW, gateways=(heard,))


def fleet(rate: float = 8.0, **changes: Any) -> Fleet:
    """Two groups of chat and one of code. rate: target and demand of chat in requests/s."""
    settings: dict[str, Any] = {
        "groups": TWO,
        "rates": {"chat": rate, "code": 8.0},
        "demand": {"chat": calm(rate), "code": calm(7.0)},
    }
    return Fleet(**{**settings, **changes})


def applied(
    made: Fleet,
    counts: dict[str, int],
    change: FleetChange,
    urgency: Urgency = Urgency.FULL,
    asked: dict[str, int] | None = None,
    obtainable: int = 4,
    **more: Any,
) -> AppliedPlan:
    """The answer to a request about the fleet `asked` (default: the present one), applied."""
    built = made.build()
    have: dict[str, int] = {}
    for one in built.groups:
        have[one.combo_id] = have.get(one.combo_id, 0) + 1
    request = PlanRequest(
        7, urgency, NOW, (), tuple(sorted((have if asked is None else asked).items()))
    )
    answer = PlanAnswer(
        7,
        urgency,
        Outcome.PLANNED,
        ("chat",),
        counts=tuple(sorted(counts.items())),
        change=change,
        demands=tuple(Demand(m, rate, BUCKET, 1.0, ()) for m, rate in made.rates.items()),
        **more,
    )
    used = used_gpus(built.groups)
    site = FreeCapacity(built.cluster, used, {RENTED.id: obtainable}, (), 9)
    return apply_answer(answer, Pending(request, (PERIOD,)), built, site)


def lives(plan: AppliedPlan, model: str = "chat") -> list[Life]:
    return [one.life for one in plan.groups if one.model == model]


MORE = {CHAT.id: 3}, FleetChange(starts=((CHAT.id, 1),))
LESS = {CHAT.id: 1}, FleetChange(leaves=(TWO[1].name,))


@pytest.mark.parametrize("urgency", Urgency)
def test_an_addition_is_placed_with_a_decision(urgency: Urgency) -> None:
    plan = applied(fleet(20.0), *MORE, urgency)
    assert lives(plan) == [Life.ACTIVE] * 3
    new = plan.groups[-1]
    assert (new.name, new.created_ms) == (f"{CHAT.id}:9", NOW)
    (decision,) = plan.decisions
    assert (decision.kind, decision.model, decision.applied) == ("scale_out", "chat", True)
    assert decision.change == ((CHAT.id, 1),)
    assert decision.demand_req_per_s == 20.0 and decision.capacity_req_per_s == 20.0
    assert decision.cost_delta_usd_per_h == 0.0, "it fits on the node"
    state = plan.models["chat"]
    assert state.hysteresis.last_out_ms == NOW and state.hysteresis.reversals.last == "out"
    assert plan.replan == () and plan.waits == ()


def test_an_addition_that_needs_a_node_states_its_price() -> None:
    full = (*TWO, group(CODE, 3, node(0)))
    plan = applied(fleet(20.0, groups=full), *MORE, Urgency.URGENT)
    assert plan.decisions[0].cost_delta_usd_per_h == RENTED.price_usd_per_h
    assert ReasonCode.COST in plan.decisions[0].codes


def test_an_addition_without_room_is_planned_again() -> None:
    full = (*TWO, group(CODE, 3, node(0)))
    plan = applied(fleet(20.0, groups=full), *MORE, Urgency.URGENT, obtainable=0)
    assert lives(plan) == [Life.ACTIVE] * 2 and plan.decisions == ()
    assert plan.replan and all(trigger.is_partly_applied for trigger in plan.replan)
    unmet = plan.models["chat"].infeasibility
    assert unmet.retry_at_ms == NOW + 30_000 and unmet.attempted_req_per_s == 20.0


def test_a_removal_with_evidence_begins() -> None:
    plan = applied(fleet(7.0), *LESS)
    assert lives(plan) == [Life.ACTIVE, Life.RETIRING]
    (decision,) = plan.decisions
    assert (decision.kind, decision.change) == ("scale_in", ((CHAT.id, -1),))
    assert plan.models["chat"].hysteresis.reversals.last == "in"
    assert plan.models["chat"].hysteresis.last_out_ms == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"demand": {}},
        {"frozen": {"chat": PERIOD}},
        {"demand": {"chat": calm(12.0)}},
        {"rates": {"chat": 8.1, "code": 8.0}},
    ],
)
def test_a_removal_without_evidence_does_not_begin(changes: dict[str, Any]) -> None:
    """Without telemetry, while frozen, and if demand or the target need both groups."""
    plan = applied(fleet(7.0, **changes), *LESS)
    assert lives(plan) == [Life.ACTIVE] * 2 and plan.decisions == ()


def test_an_answer_about_another_fleet_is_planned_again() -> None:
    plan = applied(fleet(20.0), *MORE, asked={CHAT.id: 1})
    assert lives(plan) == [Life.ACTIVE] * 2
    ((why,),) = [trigger.why.because for trigger in plan.replan]
    assert why.code is ReasonCode.FLEET_CHANGED
    gone = applied(fleet(7.0), {CHAT.id: 1}, FleetChange(leaves=(f"{CHAT.id}:99",)))
    assert lives(gone) == [Life.ACTIVE] * 2 and gone.replan


def test_an_urgent_answer_adds_only_what_is_still_missing() -> None:
    once = applied(fleet(20.0), {CHAT.id: 3}, FleetChange(((CHAT.id, 2),)), Urgency.URGENT)
    assert lives(once) == [Life.ACTIVE] * 4
    since = applied(
        fleet(20.0), {CHAT.id: 3}, FleetChange(((CHAT.id, 2),)), Urgency.URGENT, {CHAT.id: 1}
    )
    assert lives(since) == [Life.ACTIVE] * 3, "one was added since the request"
    covered = applied(fleet(8.0), *MORE, Urgency.URGENT)
    assert lives(covered) == [Life.ACTIVE] * 2 and covered.decisions == ()


def test_an_urgent_answer_meets_the_floor() -> None:
    floor = (service("chat", min_instances=3), service("code"))
    plan = applied(fleet(8.0, services=floor), *MORE, Urgency.URGENT)
    assert lives(plan) == [Life.ACTIVE] * 3
    assert ReasonCode.FLOOR in plan.decisions[0].codes


def test_lost_capacity_is_replaced() -> None:
    lost = Capacity(lost_ms=NOW - 5000, lost_nodes=("n9",))
    plan = applied(fleet(20.0, changes={"chat": {"capacity": lost}}), *MORE, Urgency.URGENT)
    assert [d.kind for d in plan.decisions] == ["replace"]
    assert ReasonCode.CAPACITY_LOST in plan.decisions[0].codes
    assert plan.models["chat"].capacity.lost_ms == 0
    assert plan.models["chat"].capacity.lost_nodes == ()


def test_no_plan_changes_nothing() -> None:
    built = fleet(20.0).build()
    none = PlanAnswer(7, Urgency.FULL, Outcome.NONE, ("chat",))
    site = FreeCapacity(built.cluster, {}, {}, (), 9)
    request = PlanRequest(7, Urgency.FULL, NOW, ())
    assert apply_answer(none, Pending(request, ()), built, site).groups is built.groups


def test_a_served_model_waits_for_room_on_the_planned_nodes() -> None:
    """The exchange needs a second node until the old group has left; the plan has one."""
    full = (*TWO, group(CODE, 3, node(0)))
    swap = FleetChange(((CHAT.id, 1),), (), (TWO[1].name,))
    busy = applied(fleet(7.0, groups=(*full, group(CODE, 4, node(1), 10.0)), starting=frozenset(
        {f"{CODE.id}:4"})), {CHAT.id: 2}, swap, obtainable=0)  # fmt: skip
    assert busy.waits in (("chat",), ())
    assert len([one for one in busy.groups if one.model == "chat"]) in (2, 3)


def test_unserved_demand_is_stated_once_in_a_while() -> None:
    short: dict[str, Any] = {"shortfall_req_per_s": (("chat", 4.0),)}
    plan = applied(fleet(20.0), {CHAT.id: 2}, FleetChange(), Urgency.URGENT, **short)
    (decision,) = plan.decisions
    assert (decision.kind, decision.applied) == ("infeasible", False)
    assert ReasonCode.UNSERVED in decision.codes and ReasonCode.NOTHING_MORE in decision.codes
    unmet = plan.models["chat"].infeasibility
    assert unmet.has_unserved and unmet.shortage_noticed_ms == NOW
    assert [t.scope for t in plan.replan] == [()], "additions alone were not enough"
    told = {"chat": {"infeasibility": Infeasibility(shortage_noticed_ms=NOW - 1000)}}
    again = applied(fleet(20.0, changes=told), {CHAT.id: 2}, FleetChange(), Urgency.URGENT, **short)
    assert again.decisions == () and again.replan == ()
    assert again.models["chat"].infeasibility.retry_at_ms == NOW + 30_000


def test_a_floor_that_no_plan_meets_is_stated() -> None:
    floor = (service("chat", min_instances=3), service("code"))
    plan = applied(fleet(8.0, services=floor), {CHAT.id: 2}, FleetChange())
    assert [d.kind for d in plan.decisions] == ["infeasible"]
    assert ReasonCode.FLOOR_UNMET in plan.decisions[0].codes
    assert not plan.models["chat"].infeasibility.has_unserved


def test_combos_outside_of_the_slo_are_stated() -> None:
    """A measured window in which the SLO is met refutes the prediction."""
    combos = replace(CHAT, meets_slo=False), CODE
    met = calm(8.0)
    assert isinstance(met.local, Stats)
    missed = replace(met, local=replace(met.local, attained=met.local.attained // 2))
    demand = {"chat": missed, "code": calm(7.0)}
    plan = applied(fleet(8.0, combos=combos, demand=demand), {CHAT.id: 2}, FleetChange())
    assert ReasonCode.OUTSIDE_SLO in plan.decisions[0].codes
    assert plan.models["chat"].infeasibility.slo_noticed_ms == NOW
    assert not applied(fleet(8.0, combos=combos), {CHAT.id: 2}, FleetChange()).decisions
    for ago_ms, count in ((1000, 0), (600_000, 1)):
        noticed = {"chat": {"infeasibility": Infeasibility(slo_noticed_ms=NOW - ago_ms)}}
        late = fleet(8.0, combos=combos, changes=noticed, demand=demand)
        assert len(applied(late, {CHAT.id: 2}, FleetChange()).decisions) == count


RECOMMENDS = (service("chat", mode=Mode.RECOMMEND), service("code"))


def advised(count: int) -> dict[str, Any]:
    return {"chat": {"advisory": Advisory(((CHAT.id, count),), NOW - 60_000)}}


def test_a_recommendation_is_stated_and_remembered() -> None:
    more = fleet(20.0, services=RECOMMENDS, changes=advised(2))
    plan = applied(more, *MORE)
    assert lives(plan) == [Life.ACTIVE] * 2
    (decision,) = plan.decisions
    assert (decision.kind, decision.applied, decision.change) == (
        "scale_out", False, ((CHAT.id, 1),),
    )  # fmt: skip
    assert decision.cost_delta_usd_per_h == pytest.approx(CHAT.usd_per_h)
    known = plan.models["chat"].advisory
    assert (known.recommended, known.recommended_ms) == (((CHAT.id, 3),), NOW)
    less = applied(fleet(7.0, services=RECOMMENDS, changes=advised(2)), *LESS)
    assert [d.kind for d in less.decisions] == ["scale_in"]
    assert less.models["chat"].advisory.recommended == ((CHAT.id, 1),)
    kept = applied(fleet(7.0, services=RECOMMENDS, changes=advised(2), demand={}), *LESS)
    assert kept.decisions == () and kept.models["chat"].advisory.recommended == ((CHAT.id, 2),)


APPROVES = (service("chat", mode=Mode.APPROVE), service("code"))


def test_a_change_in_mode_approve_is_proposed_once() -> None:
    plan = applied(fleet(20.0, services=APPROVES), *MORE)
    assert lives(plan) == [Life.ACTIVE] * 2
    (decision,) = plan.decisions
    assert not decision.applied and decision.expires_ms == NOW + 1_800_000
    state = plan.models["chat"]
    proposal = state.advisory.proposal
    assert proposal is not None and proposal.change == ((CHAT.id, 1),)
    assert (proposal.base, proposal.at_ms) == (((CHAT.id, 2),), NOW)
    assert state.infeasibility.retry_at_ms == NOW + 30_000
    open_ = {"chat": {"advisory": Advisory(proposal=proposal)}}
    again = applied(fleet(20.0, services=APPROVES, changes=open_), *MORE)
    assert again.decisions == ()


def proposed(change: FleetChange, counts: tuple[tuple[str, int], ...], **more: Any) -> Any:
    made = PendingApproval(
        5, "replan", counts, change, ((CHAT.id, 2),), (PERIOD,), NOW - 1000, NOW + 1000
    )
    retry = Infeasibility(retry_at_ms=NOW + 9)
    return {"chat": {"advisory": Advisory(proposal=replace(made, **more)), "infeasibility": retry}}


def resolved(
    changes: Any, rate: float = 7.0, verdict: bool | None = True, services: Any = APPROVES,
    token: int = 0,
) -> AppliedPlan:  # fmt: skip
    """The approvals of a tick; an operator said `verdict` (None: nothing)."""
    made = fleet(rate, services=services, changes=changes)
    built = made.build()
    controls = {}
    if verdict is not None:
        said = Control(
            "chat", "verdict", verdict, "ann", "looks right", NOW, proposal=5, leader_token=token
        )
        controls = {said.key: said}
    seen = replace(built.inputs.observation, controls=controls)
    built = replace(built, inputs=replace(built.inputs, observation=seen))
    used = used_gpus(built.groups)
    return resolve_approvals(built, FreeCapacity(built.cluster, used, {RENTED.id: 4}, (), 9))


OUT = proposed(FleetChange(starts=((CHAT.id, 1),)), ((CHAT.id, 1),))
IN = proposed(FleetChange(leaves=(TWO[1].name,)), ((CHAT.id, -1),))


def codes(plan: AppliedPlan) -> list[str]:
    return [str(d.codes[0]) for d in plan.decisions]


def test_an_approved_proposal_is_applied() -> None:
    plan = resolved(OUT, 20.0)
    assert lives(plan) == [Life.ACTIVE] * 3 and codes(plan) == [ReasonCode.PROPOSAL_APPROVED]
    assert plan.decisions[0].applied and plan.decisions[0].kind == "replan"
    assert plan.models["chat"].advisory.proposal is None
    assert plan.models["chat"].infeasibility.retry_at_ms == 0
    fewer = resolved(IN, 7.0)
    assert lives(fewer) == [Life.ACTIVE, Life.RETIRING]


def test_a_proposal_waits_for_a_verdict_about_this_leaders_number() -> None:
    for plan in (resolved(OUT, 20.0, None), resolved(OUT, 20.0, True, token=3)):
        assert lives(plan) == [Life.ACTIVE] * 2 and plan.decisions == ()
        assert plan.models["chat"].advisory.proposal is not None


def test_a_rejected_proposal_is_remembered_until_it_expires() -> None:
    plan = resolved(OUT, 20.0, False)
    known = plan.models["chat"].advisory.proposal
    assert known is not None and known.rejected
    assert codes(plan) == [ReasonCode.PROPOSAL_REJECTED]
    assert resolved(proposed(known.named, known.change, rejected=True), 20.0).decisions == ()
    over = proposed(known.named, known.change, rejected=True, expires_ms=NOW)
    ended = resolved(over, 20.0, None)
    assert ended.decisions == () and ended.models["chat"].advisory.proposal is None


def test_a_proposal_ends_with_its_time_its_mode_or_its_reason() -> None:
    late = resolved(proposed(FleetChange(), ((CHAT.id, 1),), expires_ms=NOW), 20.0, None)
    assert codes(late) == [ReasonCode.PROPOSAL_EXPIRED]
    needed = resolved(IN, 20.0, None)
    assert codes(needed) == [ReasonCode.PROPOSAL_WITHDRAWN]
    assert needed.models["chat"].advisory.proposal is None
    assert needed.models["chat"].infeasibility.retry_at_ms == NOW + 9
    acts = resolved(OUT, 20.0, None, services=(service("chat"), service("code")))
    assert acts.decisions == () and acts.models["chat"].advisory.proposal is None


def test_removals_of_an_outdated_proposal_are_dropped() -> None:
    changed = proposed(FleetChange(leaves=(TWO[1].name,)), ((CHAT.id, -1),), base=((CHAT.id, 3),))
    plan = resolved(changed)
    assert lives(plan) == [Life.ACTIVE] * 2
    assert codes(plan) == [ReasonCode.PROPOSAL_DROPPED] and plan.replan
    frozen = fleet(7.0, services=APPROVES, changes=IN, frozen={"chat": PERIOD})
    assert scale_in_veto(frozen.build().views["chat"], {}, {}, 0.0, {}) == Reason(
        ReasonCode.SCALE_IN_PAUSED, because=(PERIOD,)
    )


@pytest.mark.parametrize(
    ("net", "both", "outward", "last", "out_ms"),
    [
        (5.0, False, False, "out", NOW),
        (-5.0, False, False, "in", 0),
        (1.0, False, False, "out", NOW),
        (1.0, True, False, "", 0),
        (-1.0, True, False, "", 0),
        (5.0, True, False, "out", NOW),
        (-5.0, True, False, "in", 0),
        (-1.0, True, True, "out", NOW),
        (0.0, False, False, "", 0),
    ],
)
def test_an_exchange_is_no_reversal(
    net: float, both: bool, outward: bool, last: str, out_ms: int
) -> None:
    """Of 20 req/s, a difference of 2 or less is an exchange."""
    view = fleet(8.0).build().views["chat"]
    after = after_change(view.state, net, both, view, outward=outward)
    assert after.hysteresis == Hysteresis(Reversals(last), out_ms)
    assert is_exchange(2.0, view) and is_exchange(-2.0, view) and not is_exchange(2.1, view)


def test_kinds_of_changes() -> None:
    assert [kind_of(a, r) for a, r in ((True, False), (False, True), (True, True))] == [
        "scale_out", "scale_in", "replan",
    ]  # fmt: skip


def veto(rate: float, adds: int, removes: int, short: float = 0.0, **changes: Any) -> Any:
    made = fleet(rate, **changes).build()
    counts = Counter({CHAT.id: adds}), Counter({CHAT.id: removes})
    return scale_in_veto(made.views["chat"], +counts[0], +counts[1], short, made.combos)


def test_the_remaining_capacity_must_cover_the_demand() -> None:
    assert veto(8.0, 0, 1) is None
    assert veto(8.2, 0, 1).code is ReasonCode.NOT_COVERED
    assert veto(8.2, 1, 1, rates={"chat": 8.2, "code": 8.0}) is None, "nothing is lost"
    assert veto(20.0, 0, 1, short=1.0) is None, "the plan states what is not served"
    policy = Policy(reversals_per_h=1)
    turned = Hysteresis(Reversals("out", (NOW - 1,)))
    again = {"chat": {"hysteresis": turned}}
    limited: dict[str, Any] = {"policy": policy, "changes": again}
    assert veto(7.0, 0, 1, **limited).because[0].code is ReasonCode.TOO_MANY_REVERSALS


def test_an_open_proposal_is_no_capacity_yet() -> None:
    """It was counted as applied, so the planner does not ask for it twice."""
    assert veto(15.0, 0, 1, changes=OUT).code is ReasonCode.NOT_COVERED
    rejected = proposed(FleetChange(((CHAT.id, 1),)), ((CHAT.id, 1),), rejected=True)
    assert veto(7.0, 0, 1, changes=rejected) is None
