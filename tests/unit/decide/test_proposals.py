"""Mode approve: changes wait for a person's approval and expire without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.cluster import Mode, Policy
from autoscaler.planning.planner_messages import Urgency
from autoscaler.state.effects import PublishAssignment, PublishRoutes
from tests.unit.decide.decide_catalogue import pool, service
from tests.unit.decide.decide_world import World, reused, world
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

ONE = pool("one", nodes=12, per_node=1)
ASKING = service(mode=Mode.APPROVE)


def approving(rate: float = 20.0, within_s: float = 1800.0) -> World:
    policy = Policy(approve_within_s=within_s)
    return world(rate, ASKING, pools=(ONE,), policy=policy)


def open_proposals(w: World) -> list[Decision]:
    return [d for d in w.decisions if d.expires_ms]


def answer(w: World, number: int, approve: bool, token: int = 1) -> None:
    w.say("chat", "verdict", approve, proposal=number, leader_token=token)


def test_a_proposal_names_change_reason_and_expiry_and_changes_nothing() -> None:
    w = approving().run(200)
    (first, *_) = open_proposals(w)
    assert first.kind == "scale_out" and not first.applied and first.change and first.reason
    assert first.expires_ms - first.at_ms == 1_800_000
    assert not any(isinstance(e, (PublishAssignment, PublishRoutes)) for e in w.effects)


def test_an_open_proposal_is_not_repeated_each_second() -> None:
    """A proposal is not repeated while it covers the demand. Larger demand leads to a larger
    proposal.
    """
    w = approving().run(900)
    first = len(open_proposals(w))
    assert first <= 3
    w.rate = lambda _m, _t: 70.0
    w.run(120)
    later = open_proposals(w)[first:]
    assert later and sum(n for _, n in later[-1].change) > 3


def test_an_approved_proposal_is_applied_once_and_names_the_person_and_reason() -> None:
    w = approving().run(60)
    newest = open_proposals(w)[-1]
    answer(w, newest.number, approve=True)
    w.run(1)
    (done,) = [d for d in w.decisions if d.applied and d.change]
    assert done.change == newest.change
    assert f"#{newest.number} approved by ann: incident 7" in done.reason
    w.run(120)
    assert w.ready("chat") == sum(n for _, n in newest.change)
    assert len([d for d in w.decisions if d.applied and d.change]) == 1


@pytest.mark.parametrize("approve", [True, False])
def test_an_answer_counts_once_if_its_leader_is_killed_before_it_writes_the_ledger(
    approve: bool,
) -> None:
    """The next leader reads the decision about the answer, and a ledger with the open proposal."""
    w = approving().run(60)
    newest = open_proposals(w)[-1]
    answer(w, newest.number, approve)
    before = dict(w.ledger)
    w.run(1)
    w.ledger = before
    w.restart_controller()
    w.run(30)
    done = [d for d in w.decisions if d.proposal == newest.number]
    wanted = sum(n for _, n in newest.change) if approve else 0
    assert len(done) == 1 and w.assigned_count("chat") == wanted


def test_a_rejected_proposal_is_not_repeated_before_its_expiry() -> None:
    w = approving(within_s=600.0).run(300)
    newest = open_proposals(w)[-1]
    count = len(open_proposals(w))
    answer(w, newest.number, approve=False)
    w.run(200)
    assert f"proposal #{newest.number} was rejected by ann: incident 7" in [
        d.reason for d in w.decisions
    ]
    assert len(open_proposals(w)) == count and w.assigned_count("chat") == 0
    w.run(500)
    assert len(open_proposals(w)) > count


def test_an_approval_after_the_expiry_has_no_effect() -> None:
    w = approving(within_s=60.0).run(70)
    (first, *_) = open_proposals(w)
    w.run(60)
    assert any(ReasonCode.PROPOSAL_EXPIRED in d.codes for d in w.decisions)
    answer(w, first.number, approve=True)
    w.run(10)
    assert w.assigned_count("chat") == 0


def test_an_approval_of_another_leaders_proposal_has_no_effect() -> None:
    """Proposal numbers may start again if the topics are lost. The leader token tells the proposals
    apart.
    """
    w = approving().run(60)
    answer(w, open_proposals(w)[-1].number, approve=True, token=7)
    w.run(10)
    assert w.assigned_count("chat") == 0


@reused
def surplus() -> World:
    """Six instances, a quarter of an hour after demand fell to what one serves."""
    w = approving(rate=45.0).run(60)
    answer(w, open_proposals(w)[-1].number, approve=True)
    w.run(200)
    w.rate = lambda _m, _t: 5.0
    return w.run(900)


def test_a_removal_waits_for_approval_and_is_withdrawn_when_demand_returns() -> None:
    w = surplus()
    removals = [d for d in open_proposals(w) if d.kind == "scale_in"]
    assert removals and w.ready("chat") == 6
    w.rate = lambda _m, _t: 45.0
    w.run(60)
    assert w.decisions[-1].codes == (
        ReasonCode.PROPOSAL_WITHDRAWN,
        ReasonCode.NOT_COVERED,
    )
    for proposal in removals:
        answer(w, proposal.number, approve=True)
    w.run(60)
    assert w.ready("chat") == 6


def test_an_approved_removal_without_evidence_is_stated_and_not_applied() -> None:
    """Telemetry stopped after the proposal, so evidence of excess is missing."""
    w = surplus()
    w.silent.add("g1")
    w.run(30)
    answer(w, open_proposals(w)[-1].number, approve=True)
    w.run(5)
    assert w.ready("chat") == 6
    assert any(
        {ReasonCode.PROPOSAL_DROPPED, ReasonCode.SCALE_IN_PAUSED} <= {*d.codes} for d in w.decisions
    )


def test_an_approved_removal_is_applied() -> None:
    w = surplus()
    answer(w, [d for d in open_proposals(w) if d.kind == "scale_in"][-1].number, approve=True)
    w.run(200)
    assert w.ready("chat") == 1


def test_the_replacement_of_a_lost_node_is_proposed() -> None:
    w = approving().run(60)
    answer(w, open_proposals(w)[-1].number, approve=True)
    w.run(150)
    w.cut.add(min(w.rented(ONE.id)))
    w.run(150)
    assert open_proposals(w)[-1].kind == "replace"


def test_an_open_proposal_is_dropped_when_the_model_leaves_mode_approve() -> None:
    """It no longer counts as capacity, so the controller requests a plan for the shortfall in the
    same tick.
    """
    w = approving().run(25)
    asked = len(w.requests(Urgency.URGENT))
    w.answers = False
    w.cluster = replace(w.cluster, services=(service(mode=Mode.ACT),))
    w.run(1)
    assert w.state.models["chat"].advisory.proposal is None
    assert len(w.requests(Urgency.URGENT)) == asked + 1


def test_a_rejected_proposal_is_forgotten_when_it_expires() -> None:
    w = approving(within_s=60.0).run(40)
    answer(w, open_proposals(w)[-1].number, approve=False)
    w.run(1)
    w.answers = False
    w.run(60)
    assert w.state.models["chat"].advisory.proposal is None


def test_an_answer_to_an_earlier_version_applies_what_the_person_saw() -> None:
    """A newer plan updates the proposal before a slow person answers."""
    w = approving().run(60)
    old = open_proposals(w)[-1]
    w.rate = lambda _m, _t: 70.0
    w.run(60)
    newest = open_proposals(w)[-1]
    assert newest.number > old.number
    assert f"updates #{open_proposals(w)[-2].number}, which proposed +" in newest.reason
    answer(w, old.number, approve=True)
    w.run(1)
    (done,) = [d for d in w.decisions if d.applied and d.change]
    assert (done.change, done.proposal) == (old.change, old.number)
    w.run(60)
    later = open_proposals(w)[-1]
    assert later.number > newest.number, "the rest is proposed again"
    assert "updates" not in later.reason


def test_an_approval_of_combos_that_the_next_leader_does_not_know_is_planned_again() -> None:
    """The leader was killed between two entries of its ledger."""
    w = approving().run(60)
    newest = open_proposals(w)[-1]
    w.ledger = {key: entry for key, entry in w.ledger.items() if entry.kind != "combos"}
    w.restart_controller()
    answer(w, newest.number, approve=True)
    w.run(60)
    (ended,) = [d for d in w.decisions if d.proposal == newest.number]
    assert ReasonCode.PROPOSAL_OUTDATED in ended.codes and not ended.change
    assert open_proposals(w)[-1].number > newest.number


def test_a_rejected_earlier_version_rejects_the_proposal() -> None:
    w = approving().run(60)
    old = open_proposals(w)[-1]
    w.rate = lambda _m, _t: 70.0
    w.run(60)
    answer(w, old.number, approve=False)
    count = len(open_proposals(w))
    w.run(60)
    assert len(open_proposals(w)) == count and w.assigned_count("chat") == 0


@pytest.mark.parametrize("newest", [True, False])
def test_the_first_answer_to_any_version_counts_also_after_a_change_of_leader(
    newest: bool,
) -> None:
    w = approving().run(60)
    numbers = [open_proposals(w)[-1].number]
    w.rate = lambda _m, _t: 70.0
    w.run(60)
    numbers.append(open_proposals(w)[-1].number)
    first, second = numbers[::-1] if newest else numbers
    answer(w, first, approve=True)
    answer(w, second, approve=False)
    before = dict(w.ledger)
    w.run(1)
    w.ledger = before
    w.restart_controller()
    w.run(5)
    ends = [d.proposal for d in w.decisions if d.proposal]
    assert ends == [first]
    assert w.assigned_count("chat") > 0


def ruled(usd_per_h: float, instances: int) -> World:
    policy = Policy(unasked_usd_per_h=usd_per_h, unasked_instances=instances)
    return world(20.0, ASKING, pools=(ONE,), policy=policy)


def test_small_additions_need_no_approval_until_the_limit_of_an_hour() -> None:
    w = ruled(100.0, 3).run(120)
    done = [d for d in w.decisions if d.applied and d.change]
    assert sum(n for d in done for _, n in d.change) == 3
    assert all(ReasonCode.UNASKED in d.codes for d in done) and not open_proposals(w)
    w.rate = lambda _m, _t: 60.0
    w.run(120)
    assert open_proposals(w), "the limit of the hour is used up"
    assert w.assigned_count("chat") == 3
    w.rate = lambda _m, _t: 5.0
    w.run(4000)
    assert any(d.kind == "scale_in" for d in open_proposals(w)), "a removal needs an approval"
    assert w.assigned_count("chat") == 3


@pytest.mark.parametrize(("usd_per_h", "instances"), [(0.01, 50), (100.0, 1)])
def test_additions_above_one_limit_need_an_approval(usd_per_h: float, instances: int) -> None:
    w = ruled(usd_per_h, instances).run(120)
    assert open_proposals(w) and not w.assigned_count("chat")


def test_an_approval_for_a_time_accepts_further_changes_until_its_end() -> None:
    """Also under the next leader."""
    w = approving().run(60)
    number = open_proposals(w)[-1].number
    w.say("chat", "verdict", True, proposal=number, leader_token=1, until_ms=w.now_ms + 600_000)
    w.run(60)
    w.restart_controller()
    w.rate = lambda _m, _t: 60.0
    w.run(240)
    (_, *later) = [d for d in w.decisions if d.applied and d.change]
    assert later and all(ReasonCode.ACCEPTED_FOR in d.codes for d in later)
    assert "ann accepted changes for" in later[-1].reason
    count = w.assigned_count("chat")
    w.run(400)
    w.rate = lambda _m, _t: 100.0
    w.run(120)
    assert open_proposals(w)[-1].at_ms > w.now_ms - 130_000
    assert w.assigned_count("chat") == count
