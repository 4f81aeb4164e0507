"""Rule: capacity that was running when the controller started counts as needed until an excess
could be proven. A new controller has no target, so without this rule it would plan for the present
mean, and remove capacity that its predecessor kept for a reason.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.sizing.scale_in import excess_blocks
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the inherited capacity can serve; None once the controller has run for as long
    as an excess must last."""
    if not view.state.target.restart_hold:
        return None
    waits_ms = excess_blocks(view) * BLOCK_S * 1000
    if view.now_ms - view.started_ms >= waits_ms:
        return None
    return TargetProposal(view.planned_req_per_s, Reason(ReasonCode.INHERITED, view.service.model))
