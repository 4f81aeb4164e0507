"""Kind and reasons of the decision about a change that a planner answer makes."""

from __future__ import annotations

from autoscaler.apply.change_cause import change_cause
from autoscaler.apply.model_change import AppliedChange
from autoscaler.apply.requested_answer import RequestedAnswer
from autoscaler.domain.cluster import Service
from autoscaler.domain.reason import Reason
from autoscaler.model.tick_fleet import TickFleet
from autoscaler.sizing.prediction_drift import expected_s
from autoscaler.state.model_state import ModelState
from topics.reason_codes import ReasonCode


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
    """The cause of the change, its cost, when and how it takes effect, and the plan's trigger."""
    view, usd = fleet.views[service.model], done.delta_usd_per_h
    cause = change_cause(asked, view, done.change, usd, fleet.cluster, fleet.combos)
    parts = [cause, Reason(ReasonCode.COST, quantities=(usd,))]
    if done.started:
        slowest_s = max(fleet.combos[g.combo_id].start_s for g in done.started)
        parts.append(Reason(ReasonCode.SERVING_IN, quantities=(expected_s(state, slowest_s),)))
    if done.switched:
        parts.append(Reason(ReasonCode.ROLE_SWITCHES, quantities=(len(done.switched),)))
    if asked.is_full and asked.answer.gap >= 0.0:
        parts.append(Reason(ReasonCode.PLAN_GAP, quantities=(asked.answer.gap,)))
    return (*parts, *asked.trigger)
