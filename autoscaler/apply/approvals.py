"""Mode approve: a proposal waits for a person's approval, and is then applied, dropped or expired.

A model has at most one open proposal; a newer proposal replaces it. An approved proposal is applied
to the present fleet. Its additions are always applied. Its removals are applied only if the fleet
has not changed since the proposal and no present condition forbids them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.apply.context import ChangeContext
from autoscaler.apply.infeasible import ASK_AGAIN_MS
from autoscaler.apply.model_change import AppliedChange, Change, apply_change
from autoscaler.apply.scale_in_guards import NOT_COVERED, scale_in_veto
from autoscaler.domain.cluster import Mode, Service
from autoscaler.domain.reason import Reason
from autoscaler.rollout.capacity_and_cost import by_model
from autoscaler.rollout.diff import FreeCapacity
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.state.controller_state import ModelState, PendingApproval
from autoscaler.state.decision_record import notice
from autoscaler.state.model_view import ModelView
from autoscaler.state.replan_trigger import Trigger, partly_applied
from topics.controls import Control
from topics.decisions import Decision
from topics.reason_codes import ReasonCode

_CENT = 0.005


@dataclass(frozen=True, slots=True)
class ResolvedApprovals:
    """Fleet, states and decisions after all approvals are resolved. replan: triggers for models to
    plan again."""

    groups: tuple[ServingGroup, ...]
    site: FreeCapacity
    models: Mapping[str, ModelState]
    decisions: tuple[Decision, ...] = ()
    replan: tuple[Trigger, ...] = ()


def propose(
    decision: Decision,
    reasons: tuple[Reason, ...],
    done: AppliedChange,
    counting: Iterable[ServingGroup],
    state: ModelState,
    scene: ChangeContext,
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
        unmet_req_per_s=state.target_req_per_s,
        unmet_until_ms=scene.now_ms + ASK_AGAIN_MS,
        has_unserved=False,
    )
    known = state.proposal
    if known is not None and known.change == done.change:
        return [], state
    within_s = scene.cluster.policy.approve_within_s
    expires_ms = scene.now_ms + int(within_s * 1000)
    base = Counter(group.combo_id for group in counting)
    proposal = PendingApproval(
        0,
        decision.kind,
        done.change,
        tuple(sorted(base.items())),
        reasons,
        scene.now_ms,
        expires_ms,
    )
    said = replace(decision, applied=False, expires_ms=expires_ms)
    return [said], replace(state, proposal=proposal)


def resolve_approvals(
    groups: tuple[ServingGroup, ...],
    site: FreeCapacity,
    models: Mapping[str, ModelState],
    controls: Mapping[str, Control],
    leader_token: int,
    scene: ChangeContext,
) -> ResolvedApprovals:
    """Apply approved proposals; drop rejected and expired proposals."""
    waiting = [s for s in scene.cluster.services if models[s.model].proposal is not None]
    if not waiting:
        return ResolvedApprovals(groups, site, models)
    states = dict(models)
    now = {group.name: group for group in groups}
    decisions: list[Decision] = []
    replan: list[Trigger] = []
    current = by_model(groups)
    for service in waiting:
        model, state = service.model, states[service.model]
        proposal = state.proposal
        assert proposal is not None  # noqa: S101  the filter above
        number = (float(proposal.number),)
        if service.mode is not Mode.APPROVE:
            states[model] = replace(state, proposal=None, unmet_until_ms=0)
            continue
        if scene.now_ms >= proposal.expires_ms:
            states[model] = replace(state, proposal=None, unmet_until_ms=0)
            if not proposal.rejected:
                expired = Reason(ReasonCode.PROPOSAL_EXPIRED, model, (), number)
                decisions.append(notice(model, expired, scene.now_ms))
            continue
        if any(count < 0 for _, count in proposal.change) and not scene.views[model].covers:
            states[model] = replace(state, proposal=None)
            if not proposal.rejected:
                withdrawn = Reason(
                    ReasonCode.PROPOSAL_WITHDRAWN, model, (), number, because=(NOT_COVERED,)
                )
                decisions.append(notice(model, withdrawn, scene.now_ms))
            continue
        verdict = controls.get(f"verdict/{proposal.number}")
        if verdict is None or verdict.leader_token != leader_token or proposal.rejected:
            continue
        if not verdict.active:
            states[model] = replace(state, proposal=replace(proposal, rejected=True))
            rejected = _decided_controls(ReasonCode.PROPOSAL_REJECTED, proposal, verdict, model)
            decisions.append(notice(model, rejected, scene.now_ms))
            continue
        counting = [g for g in current.get(model, ()) if scene.sight.counts(g)]
        change, why = _still_valid(proposal, counting, scene.views[model], scene)
        done = apply_change(change, service, counting, now, site, state, scene)
        site = done.site
        now = dict(done.groups)
        states[model] = replace(done.state, proposal=None, unmet_until_ms=0)
        missing = tuple(part for part in (why, done.left_out) if part is not None)
        if missing:
            replan.append(partly_applied(model, *missing))
        if done.change:
            approved = _decided_controls(ReasonCode.PROPOSAL_APPROVED, proposal, verdict, model)
            parts = approved, *proposal.reasons, *missing
            decisions.append(_apply_approved(proposal, done, parts, service, state, scene))
        else:
            missing = missing or (Reason(ReasonCode.NOTHING_LEFT, model),)
            dropped = _decided_controls(
                ReasonCode.PROPOSAL_DROPPED, proposal, verdict, model, missing
            )
            decisions.append(notice(model, dropped, scene.now_ms))
    return ResolvedApprovals(tuple(now.values()), site, states, tuple(decisions), tuple(replan))


def _still_valid(
    proposal: PendingApproval,
    counting: Iterable[ServingGroup],
    view: ModelView,
    scene: ChangeContext,
) -> tuple[Change, Reason | None]:
    """(the part of an approved proposal that is still possible, the reason why the rest is not);
    the reason is None if no part is left out."""
    change = Counter(dict(proposal.change))
    adds, removes = +change, -change
    if not removes:
        return Change(adds, removes), None
    if Counter(group.combo_id for group in counting) != Counter(dict(proposal.base)):
        return Change(Counter(), Counter()), Reason(ReasonCode.PROPOSAL_OUTDATED)
    why = scale_in_veto(view, adds, removes, 0.0, scene)
    return (Change(Counter(), Counter()), why) if why is not None else (Change(adds, removes), None)


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
    scene: ChangeContext,
) -> Decision:
    """The decision about an approved proposal, with its cost if it differs from the proposed
    cost."""
    delta_usd = done.delta_usd_per_h
    costs = (part.quantities[0] for part in parts if part.code is ReasonCode.COST)
    if abs(delta_usd) > _CENT and all(abs(usd - delta_usd) >= _CENT for usd in costs):
        parts = *parts, Reason(ReasonCode.COST, quantities=(delta_usd,))
    return scene.decision(
        service.model, proposal.kind, parts, state, True, delta_usd, change=done.change
    )
