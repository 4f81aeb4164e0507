"""Rule: the first request to a model without instances starts an instance."""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.poisson_tests import rate_lower_bound
from autoscaler.estimate.windows import Stats
from autoscaler.state.model_view import IDLE_RATE, ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_SURELY = 0.05
"""Probability that the proposed rate is above the true one. A first instance serves more than its
model needs, so 5% is enough."""


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the arrivals prove, which is low at first: two arrivals in a second do not
    prove 2 req/s."""
    seen = view.demand.local
    if view.groups or view.raw_req_per_s > 0.0 or not isinstance(seen, Stats):
        return None
    arrived = seen.arrivals + seen.refused
    if not arrived:
        return None
    rate = max(IDLE_RATE, rate_lower_bound(arrived, seen.covered_s, _SURELY))
    return TargetProposal(rate, Reason(ReasonCode.WAKE, view.service.model))
