"""Arrivals that come in bursts need more than their mean.

Owns the size: the rate at which the declared percentile of requests arrives, beyond what chance
explains at a steady rate (`demand.dispersion`).
"""

from __future__ import annotations

from autoscaler.demand.dispersion import burst_req_per_s
from autoscaler.demand.windows import Stats
from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal

_MATTERS = 1.05


def propose(view: ModelView) -> Proposal | None:
    """The rate of bursts seen within the time that an excess must last."""
    seen = view.demand.local
    if not isinstance(seen, Stats) or not seen.arrivals:
        return None
    blocks = view.demand.blocks[-lasting_blocks(view) :]
    rate = burst_req_per_s(blocks, view.service.percentile, seen.req_per_s)
    if rate <= _MATTERS * seen.req_per_s or rate <= view.state.target_req_per_s:
        return None
    why = (
        f"bursts of {reasons.rate(rate)} req/s around a mean of {reasons.rate(seen.req_per_s)}; "
        f"capacity {reasons.rate(view.raw_req_per_s)}"
    )
    return Proposal("burst", rate, why)


def lasting_blocks(view: ModelView) -> int:
    """How many 10 s blocks an excess must last: `scale_in_after`, at least the local window."""
    return round(max(view.service.scale_in_after_s, view.policy.local_window_s) / 10)
