"""The rate to size for: it follows the present rate more closely the longer that rate lasts. A new
instance takes a minute or two to start, and a burst of three seconds is over by then, so the burst
counts only as a mean over half a minute. A rate that has lasted ten seconds counts with its lower
bound. From ten seconds to half a minute the value rises to slightly more than the mean, because an
order that is too small leads to another order and another start. After a step, a plain mean over
half a minute would include the time before the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autoscaler.domain.cluster import Policy
from autoscaler.estimate.arrival_counts import BLOCK_S, Blocks
from autoscaler.estimate.change_point import current_rate
from autoscaler.estimate.engine_rate import EngineRate
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.estimate.overdispersion import dispersion
from autoscaler.estimate.poisson_tests import mean_bounds

LASTS_S = 30
"""Seconds that a rate must last to count in full: a new instance cannot serve shorter bursts."""
_Z = 1.645
"""Standard deviations of a one-sided bound at 95%."""
_TOWARDS_HIGH = 0.4
"""Position of the rate to order for, from the mean (0) to its upper bound (1). A small surplus
costs less than a second order and a second start."""


@dataclass(frozen=True, slots=True)
class SizingRate:
    """The mean rate in requests/s over the last half minute or since the last change, its upper
    bound (95%), and the rate to order for."""

    req_per_s: float
    high_req_per_s: float
    likely_req_per_s: float


def sizing_rate(demand: ModelDemand, policy: Policy) -> SizingRate:
    """The rate since the last change if it has lasted half a minute, else over the last half
    minute."""
    rate = current_rate(demand, policy)
    likely = rate.req_per_s + _TOWARDS_HIGH * (rate.high - rate.req_per_s)
    if rate.window_s >= LASTS_S:
        return SizingRate(rate.req_per_s, rate.high, likely)
    longest = max(demand.recent, default=(0, 0))
    covered_s, arrivals = next((c for c in demand.recent if c[0] >= LASTS_S), longest)
    seconds = max(covered_s, LASTS_S)
    mean = arrivals / seconds
    high = mean if covered_s < LASTS_S else mean_bounds(arrivals, _Z)[1] / seconds
    order = mean + _TOWARDS_HIGH * (high - mean)
    if rate.since_ms is not None and rate.window_s >= BLOCK_S:
        order = max(order, rate.low + (likely - rate.low) * rate.window_s / LASTS_S)
    return SizingRate(mean, high, order)


def likely_engine_req_per_s(rate: EngineRate, blocks: Blocks) -> float:
    """The rate to order for if engines count arrivals at `rate`. blocks: the last telemetry, which
    shows how bursty arrivals are."""
    z = _Z * math.sqrt(dispersion(blocks).confirmed)
    high = mean_bounds(rate.req_per_s * rate.span_s, z)[1] / rate.span_s
    return rate.req_per_s + _TOWARDS_HIGH * (high - rate.req_per_s)
