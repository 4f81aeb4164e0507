"""Rule: capacity that was running when the controller started counts as needed until an excess
could be proven. A new controller has no target, so without this rule it would plan for the present
mean, and remove capacity that its predecessor kept for a reason.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.sizing.scale_in import excess_duration_s
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the inherited capacity can serve; None once the controller has run for as long
    as an excess must last."""
    if not view.state.target.restart_hold:
        return None
    turns = view.state.hysteresis.reversals
    waits_s = excess_duration_s(view.service, view.policy, turns, view.now_ms)
    if view.now_ms - view.started_ms >= 1000 * waits_s:
        return None
    return TargetProposal(view.planned_req_per_s, Reason(ReasonCode.INHERITED, view.service.model))
