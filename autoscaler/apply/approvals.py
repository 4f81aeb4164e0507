"""Mode approve: a proposal waits for a person's approval, and is then applied, dropped or expired.

A model has at most one open proposal. A newer plan updates it under a new number, and an answer to
an earlier number still counts: the version that the person saw is applied. Its additions are always
applied. Its removals are applied only if the fleet has not changed since the proposal and no
present condition forbids them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from autoscaler.apply.decision import decision_about, with_reasons
from autoscaler.apply.fleet_changes import AppliedPlan, FleetChanges
from autoscaler.apply.infeasible import ASK_AGAIN_MS
from autoscaler.apply.model_change import AppliedChange, Change, apply_change, planned_change
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.sizing.scale_in.removal import NOT_COVERED, scale_in_veto
from autoscaler.state.decision_record import notice
from autoscaler.state.model_state import ROLLOUT_PROPOSAL, ModelState, PendingApproval
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import partly_applied
from topics.controls import Control, verdict_key
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

_CENT = 0.005
"""Half a cent per hour in USD/h, because costs are shown in cents."""
_HOUR_MS = 3_600_000
_MOST_VERSIONS = 20
"""Versions of one proposal that can be answered."""


def propose(
    decision: Decision,
    reasons: tuple[Reason, ...],
    done: AppliedChange,
    counting: Iterable[ServingGroup],
    state: ModelState,
    fleet: TickFleet,
) -> tuple[list[Decision], ModelState]:
    """The decision about a new proposal, and the state that holds it. There is no new proposal if
    an equal one is open or was rejected recently. done: the proposed change, applied hypothetically
    to the present fleet.
    """
    if not done.change:
        return [], state
    # The fleet stays the same until a person decides, so the planner must not be called each
    # second.
    state = replace(
        state,
        infeasibility=replace(
            state.infeasibility,
            attempted_req_per_s=state.target.needed_req_per_s,
            retry_at_ms=fleet.now_ms + ASK_AGAIN_MS,
            has_unserved=False,
        ),
    )
    known = state.advisory.proposal
    if known is not None and known.change == done.change:
        return [], state
    if known is not None and known.kind == ROLLOUT_PROPOSAL and not known.rejected:
        return [], state  # one question at a time
    within_s = fleet.cluster.policy.approve_within_s
    expires_ms = fleet.now_ms + int(within_s * 1000)
    base = Counter(group.combo_id for group in counting)
    updated = known if known is not None and not known.rejected else None
    earlier = () if updated is None else _answerable(updated, fleet.now_ms)
    proposal = PendingApproval(
        0,
        decision.kind,
        done.change,
        done.named,
        tuple(sorted(base.items())),
        reasons,
        fleet.now_ms,
        expires_ms,
        earlier=earlier,
    )
    said = replace(decision, applied=False, expires_ms=expires_ms)
    if updated is not None:
        names = tuple(f"{count:+d} {combo}" for combo, count in updated.change)
        why = Reason(ReasonCode.PROPOSAL_UPDATED, decision.model, names, (updated.number,))
        reasons = *reasons, why
        said = with_reasons(said, reasons)
    return [said], replace(state, advisory=replace(state.advisory, proposal=proposal))


def permission(done: AppliedChange, state: ModelState, fleet: TickFleet) -> Reason | None:
    """The reason why the change `done` needs no approval; None if it needs one.

    An operator accepted all changes for a time, or the change only adds, and the additions of the
    last hour stay within the limits of the policy.
    """
    advisory, policy, now_ms = state.advisory, fleet.cluster.policy, fleet.now_ms
    if not done.change:
        return None
    if now_ms < advisory.accepted_until_ms:
        left_s = (advisory.accepted_until_ms - now_ms) / 1000.0
        return Reason(ReasonCode.ACCEPTED_FOR, names=(advisory.accepted_by,), quantities=(left_s,))
    recent = [one for one in advisory.unasked if now_ms - one[0] < _HOUR_MS]
    usd = done.delta_usd_per_h + sum(usd for _, usd, _ in recent)
    count = len(done.started) + sum(count for _, _, count in recent)
    limits = policy.unasked_usd_per_h, policy.unasked_instances
    if done.going or usd > limits[0] or count > limits[1]:
        return None
    return Reason(ReasonCode.UNASKED, quantities=limits)


def unasked(
    decision: Decision, done: AppliedChange, state: ModelState
) -> tuple[Decision, ModelState]:
    """The decision about a change that needed no approval, which ends an open proposal, and the
    state afterwards. state: before the change."""
    advisory, at_ms = state.advisory, decision.at_ms
    open_ = advisory.proposal
    kept = [one for one in advisory.unasked if at_ms - one[0] < _HOUR_MS]
    if at_ms >= advisory.accepted_until_ms:
        kept.append((at_ms, done.delta_usd_per_h, len(done.started)))
    after = _without_proposal(done.state)
    after = replace(after, advisory=replace(after.advisory, unasked=tuple(kept)))
    return (decision if open_ is None else _ending(open_, decision)), after


def _answerable(proposal: PendingApproval, now_ms: int) -> tuple[PendingApproval, ...]:
    """The versions of `proposal` that an update keeps."""
    kept = (replace(one, earlier=()) for one in proposal.versions if one.expires_ms > now_ms)
    return tuple(kept)[: _MOST_VERSIONS - 1]


def resolve_approvals(fleet: TickFleet, site: FreeCapacity) -> AppliedPlan:
    """Apply approved proposals; drop rejected and expired proposals."""
    changes = FleetChanges(fleet, site)
    for service in fleet.cluster.services:
        proposal = fleet.models[service.model].advisory.proposal
        if proposal is None:
            continue
        version, verdict = answered_version(proposal, fleet.inputs.observation.controls)
        if not _ended(version, verdict, service, changes) and verdict is not None:
            _resolve(version, verdict, service, changes)
    return changes.result()


def answered_version(
    proposal: PendingApproval, controls: Mapping[str, Control]
) -> tuple[PendingApproval, Control | None]:
    """The version of `proposal` that an operator answered first, and the answer; the newest version
    and None without an answer. controls: in the order of their topic."""
    versions = {verdict_key(one.leader_token, one.number): one for one in proposal.versions}
    keys = [
        key
        for key, version in versions.items()
        if key in controls and controls[key].at_ms < version.expires_ms
    ]
    if not keys or proposal.rejected:
        return proposal, None
    first = keys[0] if len(keys) == 1 else next(key for key in controls if key in keys)
    return versions[first], controls[first]


def _ended(
    proposal: PendingApproval, verdict: Control | None, service: Service, changes: FleetChanges
) -> bool:
    """Drop a proposal that can no longer be approved: the mode changed, its time is over, or demand
    needs the capacity that it would remove."""
    fleet, model = changes.fleet, service.model
    state, number = changes.models[model], (float(proposal.number),)
    if service.mode is not Mode.APPROVE:
        changes.models[model] = _without_proposal(state)
        return True
    if fleet.now_ms >= proposal.expires_ms and verdict is None:
        changes.models[model] = _without_proposal(state)
        ended = Reason(ReasonCode.PROPOSAL_EXPIRED, model, (), number)
    elif any(count < 0 for _, count in proposal.change) and not fleet.views[model].covers:
        changes.models[model] = replace(state, advisory=replace(state.advisory, proposal=None))
        ended = Reason(ReasonCode.PROPOSAL_WITHDRAWN, model, (), number, because=(NOT_COVERED,))
    else:
        return False
    if not proposal.rejected:
        changes.decisions.append(_ending(proposal, notice(model, ended, fleet.now_ms)))
    return True


def _ending(proposal: PendingApproval, decision: Decision) -> Decision:
    """`decision`, marked as the end of `proposal`."""
    return replace(decision, proposal=proposal.number)


def _without_proposal(state: ModelState) -> ModelState:
    """`state` after its proposal has ended; the planner may be asked again at once."""
    return replace(
        state,
        advisory=replace(state.advisory, proposal=None),
        infeasibility=replace(state.infeasibility, retry_at_ms=0),
    )


def without_ended_proposal(state: ModelState, ends: Mapping[int, Decision]) -> ModelState:
    """`state` from a ledger, without an open proposal that has ended: its leader may have been
    killed between the decision and the ledger. ends: decisions that ended a proposal, by its
    number."""
    proposal = state.advisory.proposal
    if proposal is None or proposal.rejected:
        return state
    found = ((ends.get(one.number), one.leader_token) for one in proposal.versions)
    end = next((end for end, token in found if end and end.leader_token >= token), None)
    if end is None:
        return state
    if ReasonCode.PROPOSAL_REJECTED in end.codes:
        rejected = replace(proposal, rejected=True, earlier=())
        return replace(state, advisory=replace(state.advisory, proposal=rejected))
    return _without_proposal(state)


def _resolve(
    proposal: PendingApproval, verdict: Control, service: Service, changes: FleetChanges
) -> None:
    """Apply the approved version of a proposal, or mark the proposal as rejected."""
    fleet, model = changes.fleet, service.model
    state = changes.models[model]
    if verdict.active and verdict.until_ms:
        advisory = replace(
            state.advisory, accepted_until_ms=verdict.until_ms, accepted_by=verdict.who
        )
        state = replace(state, advisory=advisory)
        changes.models[model] = state
    if proposal.kind == ROLLOUT_PROPOSAL:
        _decide_rollout(proposal, verdict, service, changes)
        return
    if not verdict.active:
        newest = state.advisory.proposal or proposal
        newest = replace(newest, rejected=True, earlier=())
        changes.models[model] = replace(state, advisory=replace(state.advisory, proposal=newest))
        rejected = _decided_controls(ReasonCode.PROPOSAL_REJECTED, proposal, verdict, model)
        changes.decisions.append(_ending(proposal, notice(model, rejected, fleet.now_ms)))
        return
    counting = fleet.views[model].serving.counting
    change, why = _still_valid(proposal, counting, fleet.views[model], fleet)
    done = apply_change(change, service, counting, changes.groups, changes.site, state, fleet)
    changes.keep(done, model)
    changes.models[model] = _without_proposal(done.state)
    missing = tuple(part for part in (why, done.left_out) if part is not None)
    if missing:
        changes.replan.append(partly_applied(model, *missing))
    if done.change:
        approved = _decided_controls(ReasonCode.PROPOSAL_APPROVED, proposal, verdict, model)
        parts = approved, *proposal.reasons, *missing
        decided = _apply_approved(proposal, done, parts, service, state, fleet)
        changes.decisions.append(_ending(proposal, decided))
        return
    missing = missing or (Reason(ReasonCode.NOTHING_LEFT, model),)
    dropped = _decided_controls(ReasonCode.PROPOSAL_DROPPED, proposal, verdict, model, missing)
    changes.decisions.append(_ending(proposal, notice(model, dropped, fleet.now_ms)))


def _decide_rollout(
    proposal: PendingApproval, verdict: Control, service: Service, changes: FleetChanges
) -> None:
    """Let a rollout begin, or refuse its version until an operator resumes it."""
    model, now_ms = service.model, changes.fleet.now_ms
    state = _without_proposal(changes.models[model])
    code = ReasonCode.PROPOSAL_APPROVED if verdict.active else ReasonCode.PROPOSAL_REJECTED
    why = _decided_controls(code, proposal, verdict, model)
    digest = proposal.reasons[0].names[-1]
    rollout = replace(state.rollout, approved=digest)
    if not verdict.active:
        rollout = replace(state.rollout, target="", refused=digest, refused_ms=now_ms, why=why)
    changes.models[model] = replace(state, rollout=rollout)
    changes.decisions.append(_ending(proposal, notice(model, why, now_ms)))


def _still_valid(
    proposal: PendingApproval,
    counting: Iterable[ServingGroup],
    view: ModelView,
    fleet: TickFleet,
) -> tuple[Change, Reason | None]:
    """(the part of an approved proposal that is still possible, the reason why the rest is not);
    the reason is None if no part is left out."""
    counting = tuple(counting)
    change = planned_change(proposal.named)
    if not change.adds.keys() <= fleet.combos.keys():  # forgotten with the last leader
        return Change(), Reason(ReasonCode.PROPOSAL_OUTDATED)
    if not change.removes:
        return change, None
    if Counter(group.combo_id for group in counting) != Counter(dict(proposal.base)) or not (
        change.names_only(counting)
    ):
        return Change(), Reason(ReasonCode.PROPOSAL_OUTDATED)
    why = scale_in_veto(view, change.adds, change.removes, 0.0, fleet.combos)
    return (Change(), why) if why is not None else (change, None)


def _decided_controls(
    code: ReasonCode,
    proposal: PendingApproval,
    verdict: Control,
    model: str,
    because: tuple[Reason, ...] = (),
) -> Reason:
    """The reason that names the operator's verdict on `proposal`."""
    return Reason(code, model, (verdict.who,), (proposal.number,), verdict.why, because)


def _apply_approved(
    proposal: PendingApproval,
    done: AppliedChange,
    parts: tuple[Reason, ...],
    service: Service,
    state: ModelState,
    fleet: TickFleet,
) -> Decision:
    """The decision about an approved proposal, with its cost if it differs from the proposed
    cost."""
    delta_usd = done.delta_usd_per_h
    costs = (part.quantities[0] for part in parts if part.code is ReasonCode.COST)
    if abs(delta_usd) > _CENT and all(abs(usd - delta_usd) >= _CENT for usd in costs):
        parts = *parts, Reason(ReasonCode.COST, quantities=(delta_usd,))
    return decision_about(
        fleet, service.model, proposal.kind, parts, state, True, delta_usd, change=done.change
    )
