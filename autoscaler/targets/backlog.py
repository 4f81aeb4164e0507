"""Requests pile up beyond what the load explains: capacity is short whatever the rate says.

Owns when this raises the target and by how much (`demand.backlog` has the statistics). While
something starts, what piles up meanwhile is no news.
"""

from __future__ import annotations

from autoscaler.demand.backlog import overload
from autoscaler.demand.present import present_rate
from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal


def propose(view: ModelView) -> Proposal | None:
    """The rate that the requests in flight show, capped by what arrivals allow."""
    if not view.settled or not view.ready:
        return None
    rate = present_rate(view.demand, view.policy)
    # What is in flight arrived over the last half minute or so: a lull of seconds explains nothing.
    recent = max(rate.req_per_s, view.demand.req_per_s)
    found = overload(view.demand.in_flight, recent, rate.high, view.ready, view.state.lengths)
    if found is None or found.req_per_s <= view.planned_req_per_s:
        return None
    why = (
        f"{found.in_flight} requests in flight where {reasons.rate(recent)} req/s explain "
        f"{found.expected:.0f}; capacity {reasons.rate(view.raw_req_per_s)}"
    )
    return Proposal("backlog", found.req_per_s, why)
