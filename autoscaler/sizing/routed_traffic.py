"""Requests that come, or shall come, by way of a service that stands for several models.

Before thresholds change, the model that is to get more of the requests needs its capacity; and one
whose requests others answer for want of room needs it although they do not arrive there.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_HOLDS = 0.97


def propose(view: ModelView) -> TargetProposal | None:
    """What was planned for, while thresholds wait to be changed, and what surely comes."""
    routed = view.routed
    if routed is None:
        return None
    rate = max(routed.least_req_per_s, routed.planned_req_per_s)
    if rate <= 0.0 or rate < _HOLDS * view.state.target_req_per_s:
        return None  # nothing to hold; where more is planned, a lasting excess may lower it
    return TargetProposal(
        rate, Reason(ReasonCode.ROUTED, view.service.model, (routed.by,), (rate,))
    )
