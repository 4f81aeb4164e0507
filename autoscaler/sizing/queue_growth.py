"""Requests pile up beyond what the load explains: capacity is short whatever the rate says.

Owns when this raises the target and by how much (`demand.backlog` has the statistics). While
something starts, what piles up meanwhile is no news.
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.estimate.queue_model import detect_overload
from autoscaler.sizing.sizing_rate import sustained
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

REMEMBER_MS = 20_000


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that the requests in flight show, capped by what arrivals allow."""
    if not view.nothing_starting or not view.ready or drains(view):
        return None
    rate = sustained(view.demand, view.policy)
    recent = max(rate.req_per_s, view.demand.req_per_s)
    highest = max(rate.high_req_per_s, recent)
    found = detect_overload(view.demand.in_flight, recent, highest, view.ready, view.state.lengths)
    if found is None or found.req_per_s <= view.planned_req_per_s:
        return None
    seen = found.in_flight, recent, found.expected, view.raw_req_per_s
    why = Reason(ReasonCode.BACKLOG, view.service.model, quantities=seen)
    return TargetProposal(found.req_per_s, why)


def drains(view: ModelView) -> bool:
    """Whether fewer requests are in flight than a while ago: a queue that is left over from a time
    of too little capacity says nothing about the capacity there is."""
    (_, before), _ = view.state.in_flight
    return view.demand.in_flight < before


def remembered(view: ModelView) -> tuple[tuple[int, int], tuple[int, int]]:
    """(when, requests in flight) of two moments, the older one some 20 to 40 s ago."""
    older, newer = view.state.in_flight
    if view.now_ms - newer[0] < REMEMBER_MS:
        return older, newer
    return newer, (view.now_ms, view.demand.in_flight)
