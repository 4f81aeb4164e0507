"""Arrivals that come in bursts of half a minute and more need more than their mean.

Owns the size: the rate at which the declared percentile of requests arrives, beyond what chance
explains at a steady rate (`demand.dispersion`). Shorter clumps lower the capacity of instances
instead (`demand.clumps`).
"""

from __future__ import annotations

from autoscaler.demand.dispersion import burst_req_per_s
from autoscaler.demand.windows import Stats
from autoscaler.explain import reasons
from autoscaler.targets.view import ModelView, Proposal

_MATTERS = 1.05


def propose(view: ModelView) -> Proposal | None:
    """The rate of the bursts around the mean of the long window."""
    mean, rate = mean_and_burst(view)
    if rate <= _MATTERS * mean or rate <= view.state.target_req_per_s:
        return None
    why = f"bursts of {reasons.rate(rate)} req/s around a mean of {reasons.rate(mean)}"
    return Proposal("burst", rate, why)


def mean_and_burst(view: ModelView) -> tuple[float, float]:
    """(mean requests/s, requests/s that bursts reach) in the long window; equal without bursts.

    The mean of a short window would make a burst the mean of further ones.
    """
    seen = view.demand.long
    mean = seen.req_per_s if isinstance(seen, Stats) else 0.0
    return mean, burst_req_per_s(view.demand.blocks, view.service.percentile, mean)
