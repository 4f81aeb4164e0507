"""Rule: more requests are in flight than the load explains, so capacity is insufficient, whatever
rate was measured.

`estimate.queue_model` contains the statistics. While an instance starts, a growing queue is
expected and triggers nothing.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.queue_model import detect_overload
from autoscaler.estimate.scale_in_evidence import is_stale
from autoscaler.sizing.sizing_rate import sizing_rate
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

REMEMBER_MS = 20_000
"""Distance in ms of the two moments at which requests in flight are compared: growth over less time
may be one burst."""

_MOST_UNSEEN = 2.0
"""Largest order without telemetry, as a multiple of the planned capacity: the rate is unknown, and
the next order can follow when these instances serve."""


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the requests in flight imply, at most the upper bound of the measured rate."""
    if not view.serving.nothing_starting or not view.serving.ready or is_draining(view):
        return None
    if is_stale(view.demand):
        recent, highest = view.planned_req_per_s, _MOST_UNSEEN * view.planned_req_per_s
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
    (_, before), _ = view.state.estimate.in_flight
    return _in_flight(view) < before


def _in_flight(view: ModelView) -> int:
    """Requests in flight according to gateways, or to executors while telemetry is missing."""
    if is_stale(view.demand):
        return view.serving.requests_in_engines
    return view.demand.in_flight


def in_flight_history(view: ModelView) -> tuple[tuple[int, int], tuple[int, int]]:
    """(time in ms, requests in flight) at two moments; the older moment is about 20 to 40 s ago."""
    older, newer = view.state.estimate.in_flight
    if view.now_ms - newer[0] < REMEMBER_MS:
        return older, newer
    return newer, (view.now_ms, _in_flight(view))
