"""Rule: more requests are in flight than the load explains, so capacity is insufficient, whatever
rate was measured.

`estimate.queue_model` contains the statistics. While an instance starts, a growing queue is
expected and triggers nothing.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.engine_rate import MOST_LOAD, Moment
from autoscaler.estimate.queue_model import detect_overload
from autoscaler.estimate.scale_in_evidence import counted_by_engines, is_stale
from autoscaler.sizing.sizing_rate import sizing_rate
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the requests in flight imply, at most the upper bound of the measured rate.
    While telemetry is missing, the rate by engines takes its place, and requests that wait in
    gateways are unseen; then the bound is a multiple of the ready capacity."""
    if not view.serving.nothing_starting or not view.serving.ready or is_draining(view):
        return None
    if is_stale(view.demand):
        rates = view.serving.engine_rates
        recent = rates[-1].req_per_s if rates else view.planned_req_per_s
        highest = MOST_LOAD * sum(combo.req_per_s for combo in view.serving.ready)
    else:
        rate = sizing_rate(view.demand, view.policy)
        recent = max(rate.req_per_s, view.demand.req_per_s)
        highest = max(rate.high_req_per_s, recent)
    found = detect_overload(
        _in_flight(view), recent, highest, view.serving.ready, view.state.estimate.lengths
    )
    if found is None or found.req_per_s <= view.planned_req_per_s:
        return None
    seen = found.in_flight, recent, found.expected, view.raw_req_per_s
    why = Reason(ReasonCode.BACKLOG, view.service.model, quantities=seen)
    return TargetProposal(found.req_per_s, why)


def is_draining(view: ModelView) -> bool:
    """Whether fewer requests are in flight than before. The remaining queue of a past shortage
    proves nothing about the present capacity."""
    moments = view.state.estimate.moments
    return len(moments) > 1 and _in_flight(view) < moments[-2].in_flight


def _in_flight(view: ModelView) -> int:
    """Requests in flight according to gateways, or to executors while telemetry is missing."""
    if is_stale(view.demand):
        return view.serving.requests_in_engines
    return view.demand.in_flight


def moment(view: ModelView) -> Moment:
    """The requests of the model now."""
    groups = view.serving.group_counts if counted_by_engines(view.demand) else {}
    return Moment(view.now_ms, _in_flight(view), groups)
