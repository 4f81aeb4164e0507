"""Rule: a model needs capacity for the requests that a service with several models routes to it,
now or soon. Before thresholds change, the model that will get more requests needs its capacity.
While a model lacks capacity, other models answer its requests; it still needs capacity for them.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_HOLDS = 0.97
"""Share of the target above which routed traffic holds it. A lower rate makes no proposal, so that
a lasting excess may lower the target."""


def propose(view: ModelView) -> TargetProposal | None:
    """The higher of two rates: the lower bound of the present routed rate, and the planned rate if
    the thresholds are about to change."""
    routed = view.routed
    if routed is None:
        return None
    rate = max(routed.least_req_per_s, routed.planned_req_per_s)
    if rate <= 0.0 or rate < _HOLDS * view.state.target.req_per_s:
        return None  # make no proposal, so that a lasting excess may lower the target
    return TargetProposal(
        rate, Reason(ReasonCode.ROUTED, view.service.model, (routed.by,), (rate,))
    )
