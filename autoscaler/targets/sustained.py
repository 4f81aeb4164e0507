"""The rate to size by: what lasted for half a minute, however high the last seconds are.

What is ordered now serves in a minute or two. A burst of three seconds is over by then, so it
counts for what it is over half a minute: the first seconds of a lasting surge order a part of it,
and half a minute all of it. An estimate over a shorter time may also be a change of the rate that
chance made up.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.demand.observed import ModelDemand
from autoscaler.demand.present import present_rate
from autoscaler.demand.significance import bounds
from autoscaler.domain.cluster import Policy

LASTS_S = 30
_Z = 1.645


@dataclass(frozen=True, slots=True)
class Sustained:
    """Requests/s that lasted, and an upper bound of it (95%)."""

    req_per_s: float
    high_req_per_s: float

    @property
    def likely_req_per_s(self) -> float:
        """Towards the bound: what is ordered short has to be ordered, and started, again."""
        return self.req_per_s + 0.4 * (self.high_req_per_s - self.req_per_s)


def sustained(demand: ModelDemand, policy: Policy) -> Sustained:
    """The present rate where it is known over half a minute, else the mean of half a minute."""
    rate = present_rate(demand, policy)
    if rate.window_s >= LASTS_S:
        return Sustained(rate.req_per_s, rate.high)
    longest = max(demand.recent, default=(0, 0))
    covered_s, arrivals = next((c for c in demand.recent if c[0] >= LASTS_S), longest)
    seconds = max(covered_s, LASTS_S)
    if covered_s < LASTS_S:
        return Sustained(arrivals / seconds, arrivals / seconds)
    return Sustained(arrivals / seconds, bounds(arrivals, _Z)[1] / seconds)
