"""Rule: requests that reach a model, or will reach it, through a service that stands for several
models.

Before thresholds change, the model that gets more requests needs its capacity. A model whose
requests others answer for lack of room needs capacity although they do not arrive there.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_HOLDS = 0.97


def propose(view: ModelView) -> TargetProposal | None:
    """The planned rate while thresholds are about to change, and the lower bound of the present
    rate."""
    routed = view.routed
    if routed is None:
        return None
    rate = max(routed.least_req_per_s, routed.planned_req_per_s)
    if rate <= 0.0 or rate < _HOLDS * view.state.target_req_per_s:
        return None  # a lasting excess may lower the target
    return TargetProposal(
        rate, Reason(ReasonCode.ROUTED, view.service.model, (routed.by,), (rate,))
    )
