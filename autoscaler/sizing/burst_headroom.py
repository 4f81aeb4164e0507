"""Rule: arrivals in bursts of half a minute or longer need more capacity than their mean.

The rule proposes a rate such that the declared percentile of requests arrives at most at this rate,
without the variation that chance explains at a steady rate (`overdispersion`). Shorter bursts lower
the capacity of instances instead (`estimate.burstiness`).
"""

from __future__ import annotations

from autoscaler.domain.reason import Reason
from autoscaler.domain.result_caches import TICK_CACHES
from autoscaler.estimate.arrival_counts import Blocks, since_first_arrival
from autoscaler.estimate.overdispersion import burst_req_per_s
from autoscaler.state.model_view import ModelView, TargetProposal
from topics.reason_codes import ReasonCode

_MATTERS = 1.05
"""Bursts raise the target only if they exceed the mean by this factor, because smaller differences
are within the error of the mean."""


def propose(view: ModelView) -> TargetProposal | None:
    """The rate that bursts reach above the mean of the long window."""
    mean, rate = mean_and_burst(view)
    if rate <= _MATTERS * mean or rate <= view.state.target.req_per_s:
        return None
    return TargetProposal(
        rate, Reason(ReasonCode.BURST, view.service.model, quantities=(rate, mean))
    )


def mean_and_burst(view: ModelView) -> tuple[float, float]:
    """(mean rate, rate that bursts reach) in the long window, in requests/s; equal without bursts.

    The window is long, because in a short window a burst would raise the mean with which it is
    compared.
    """
    return _mean_and_burst(view.demand.blocks, view.service.percentile)


@TICK_CACHES.by_identity  # cached, because blocks change only every 10 s
def _mean_and_burst(blocks: Blocks, percentile: float) -> tuple[float, float]:
    """The mean rate and the rate that bursts reach (at `percentile`) in `blocks`, beginning with
    the first block that has requests."""
    seen = since_first_arrival(blocks)
    covered_s = sum(seconds for seconds, _ in seen)
    mean = sum(arrivals for _, arrivals in seen) / covered_s if covered_s else 0.0
    return mean, burst_req_per_s(blocks, percentile, mean)
