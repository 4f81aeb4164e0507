"""Rule: while telemetry is missing, engines accept significantly more requests than planned for.

The executors' counts stand in for the gateways' telemetry (`estimate.engine_rate`).
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.reason import Reason
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import is_significant
from autoscaler.estimate.scale_in_evidence import is_stale
from autoscaler.sizing.rate_increase import increase_reason, least_order
from autoscaler.sizing.sizing_rate import likely_engine_req_per_s
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode


def propose(view: ModelView) -> TargetProposal | None:
    """The highest rate to order for of the spans that prove a rate above the plan.

    Successive tests of a long span see nearly the same requests, so the test of a longer span may
    err more often in proportion. (`rate_increase` tests shorter spans more strictly.)
    """
    if not is_stale(view.demand):
        return None
    planned, blocks, policy = view.planned_req_per_s, view.demand.blocks, view.policy
    spread = dispersion(blocks).confirmed
    proven = [
        likely_engine_req_per_s(rate, blocks)
        for rate in view.serving.engine_rates
        if rate.req_per_s * rate.span_s >= policy.min_samples
        and is_significant(
            round(rate.req_per_s * rate.span_s / spread),
            planned * rate.span_s / spread,
            min(0.5, policy.significance * rate.span_s / policy.surge_window_s),
        )
    ]
    if not proven:
        return None
    size = least_order(max(proven), planned)
    why = replace(increase_reason(view, size), because=(Reason(ReasonCode.TELEMETRY_STALE),))
    return TargetProposal(size, why)
