"""Requests pile up beyond what the load explains: capacity is short whatever the rate says.

Owns when this raises the target and by how much (`demand.backlog` has the statistics). While
something starts, what piles up meanwhile is no news.
"""

from __future__ import annotations

from autoscaler.demand.backlog import overload_req_per_s
from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal


def propose(view: ModelView) -> Proposal | None:
    """The rate that the requests in flight show, capped by what arrivals allow."""
    if not view.settled or not view.ready:
        return None
    rate = overload_req_per_s(view.demand, view.ready, view.state.lengths, view.policy)
    if rate is None or rate <= view.planned_req_per_s:
        return None
    in_flight = sum(gateway.in_flight for gateway in view.demand.gateways)
    why = (
        f"{in_flight} requests in flight, more than {reasons.rate(view.demand.req_per_s)} req/s "
        f"explains; capacity {reasons.rate(view.raw_req_per_s)}"
    )
    return Proposal("backlog", rate, why)
