"""The rate to size by: what is believed of the present rate, more of it the longer it lasts.

What is ordered now serves in a minute or two, and a burst of three seconds is over by then: it
counts for what it is over half a minute. A rate that has lasted for ten seconds is more than a
clump of requests: it counts for its lower bound, and after half a minute for somewhat more than was
seen, because what is ordered short has to be ordered, and started, again. In between it grows from
the one to the other. A mean over half a minute alone would count the time before a step, and buy in
small pieces what one large node serves for less.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import BLOCK_S
from autoscaler.estimate.change_point import current_rate
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.poisson_tests import mean_bounds

LASTS_S = 30
_Z = 1.645
_TOWARDS_HIGH = 0.4


@dataclass(frozen=True, slots=True)
class Sustained:
    """Requests/s that lasted, an upper bound of it (95%), and what to order for."""

    req_per_s: float
    high_req_per_s: float
    likely_req_per_s: float


def sustained(demand: ModelDemand, policy: Policy) -> Sustained:
    """What lasted for half a minute, or what is surely there since the rate changed."""
    rate = current_rate(demand, policy)
    likely = rate.req_per_s + _TOWARDS_HIGH * (rate.high - rate.req_per_s)
    if rate.window_s >= LASTS_S:
        return Sustained(rate.req_per_s, rate.high, likely)
    longest = max(demand.recent, default=(0, 0))
    covered_s, arrivals = next((c for c in demand.recent if c[0] >= LASTS_S), longest)
    seconds = max(covered_s, LASTS_S)
    mean = arrivals / seconds
    high = mean if covered_s < LASTS_S else mean_bounds(arrivals, _Z)[1] / seconds
    order = mean + _TOWARDS_HIGH * (high - mean)
    if rate.since_ms is not None and rate.window_s >= BLOCK_S:
        order = max(order, rate.low + (likely - rate.low) * rate.window_s / LASTS_S)
    return Sustained(mean, high, order)
