"""Rule: the declared workload counts until windows have measured the rate.

Otherwise a model would start with its minimum number of instances and be overloaded in its first
minutes.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode


def propose(view: ModelView) -> TargetProposal | None:
    """The declared rate of a model whose rate has not been measured yet."""
    declared = view.service.req_per_s
    if view.state.estimate.rate_observed or declared <= 0.0:
        return None
    why = Reason(ReasonCode.DECLARED, view.service.model, quantities=(declared,))
    return TargetProposal(declared, why)
