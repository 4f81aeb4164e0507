"""Kind and reasons of the decision about a change that a planner answer makes."""

from __future__ import annotations

from autoscaler.apply.model_change import AppliedChange
from autoscaler.apply.requested_answer import RequestedAnswer
from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.sizing.prediction_drift import expected_s
from autoscaler.state.model_state import ModelState
from autoscaler.state.model_view import ModelView
from topics.reason_codes import ReasonCode

_CORRECTIONS = (ReasonCode.OVERESTIMATED, ReasonCode.SLOW_ENGINES)


def decision_kind(asked: RequestedAnswer, state: ModelState, done: AppliedChange) -> str:
    """The kind of the decision. An urgent change counts as an addition, even if other combos become
    superfluous."""
    outward = bool(done.started or done.switched) and not asked.is_full
    kind = "scale_out" if outward else done.kind
    return "replace" if kind == "scale_out" and state.capacity.lost_ms else kind


def change_reasons(
    asked: RequestedAnswer,
    state: ModelState,
    fleet: TickFleet,
    service: Service,
    done: AppliedChange,
) -> tuple[Reason, ...]:
    """The reasons of the change, its cost, and when and how the change takes effect."""
    why = plan_reasons(asked, fleet.views[service.model], decision_kind(asked, state, done))
    parts = [*why, Reason(ReasonCode.COST, quantities=(done.delta_usd_per_h,))]
    if done.started:
        slowest_s = max(fleet.combos[g.combo_id].start_s for g in done.started)
        parts.append(Reason(ReasonCode.SERVING_IN, quantities=(expected_s(state, slowest_s),)))
    if done.switched:
        parts.append(Reason(ReasonCode.ROLE_SWITCHES, quantities=(len(done.switched),)))
    if asked.is_full and asked.answer.gap >= 0.0:
        parts.append(Reason(ReasonCode.PLAN_GAP, quantities=(asked.answer.gap,)))
    return tuple(parts)


def plan_reasons(asked: RequestedAnswer, view: ModelView, kind: str) -> tuple[Reason, ...]:
    """The reasons for the plan: the triggers of a full plan, or the need of an urgent plan. kind:
    kind of the decision."""
    state, model = view.state, view.service.model
    if asked.is_full:
        triggers = asked.pending.reasons
        replanned = Reason(ReasonCode.REPLANNED, model, because=triggers)
        excess = any(why.code is ReasonCode.EXCESS for why in triggers)
        if kind == "scale_in" and excess and state.target.why is not None:
            return state.target.why, replanned
        return (replanned,)
    if kind == "replace":
        return (Reason(ReasonCode.CAPACITY_LOST, model, state.capacity.lost_nodes),)
    floor = Reason(ReasonCode.FLOOR, model, quantities=(view.service.min_instances,))
    if view.groups < view.service.min_instances and view.groups:
        return (floor,)
    why = state.target.why
    corrected = state.capacity.derate < 1.0 or (why is not None and why.code in _CORRECTIONS)
    if view.groups and not state.target.overload_since_ms and not corrected:
        rates = view.planned_req_per_s, state.target.req_per_s
        return (Reason(ReasonCode.LENGTHS_WORTH, model, quantities=rates),)
    return (floor if state.target.why is None else state.target.why,)
