"""When to add capacity: Algorithm 1 of Cauchy (sec. 3.5.1) with a test of significance.

Owns the question whether demand exceeds what is planned for, by how much and since when. Knows
no combos, no prices and no placement.

The rule fires when the rate seen exceeds planned capacity by more than `ratio` AND so many
arrivals would come by chance, at a rate equal to planned capacity, with a probability below
`significance`. Windows of one second up to the local one are tried (`spans_s`). All
of them share one false-alarm probability (each gets an equal part), so their number costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.demand.observed import ModelDemand, spans_s
from autoscaler.demand.significance import lower_rate, poisson_tail
from autoscaler.demand.windows import NoData
from autoscaler.domain.cluster import Policy

_LOADED = 0.5
ESTIMATE = 0.05  # a surge is sized by the lower end of its 95% interval: it may be just a spike


@dataclass(frozen=True, slots=True)
class Need:
    """Demand that planned capacity does not cover.

    req_per_s: what to plan for. window_s: of the window that showed it. surge: whether one
    shorter than the local window did. since_ms: start of that window (surge), else now.
    """

    req_per_s: float
    window_s: int
    surge: bool
    since_ms: int


def need(demand: ModelDemand, planned_req_per_s: float, policy: Policy, now_ms: int) -> Need | None:
    """The need that `demand` proves beyond `planned_req_per_s` (utilization applied), if any.

    The surge window that says so most clearly (smallest tail) dates the start of the surge; its
    size is the largest lower bound of all windows that say so.
    """
    if isinstance(demand.local, NoData):
        return None
    threshold = planned_req_per_s * (1.0 + policy.ratio)
    allowed = policy.significance / (len(spans_s(policy)) + 1)
    clearest, since_s = 1.0, 0
    proving: list[tuple[int, int]] = []
    if demand.local.age_ms <= policy.surge_window_s * 1000:
        for covered_s, arrivals in demand.recent:
            if arrivals < policy.min_samples or arrivals <= threshold * covered_s:
                continue
            tail = poisson_tail(arrivals, planned_req_per_s * covered_s)
            if tail > allowed:
                continue
            proving.append((covered_s, arrivals))
            if since_s == 0 or tail < clearest:
                clearest, since_s = tail, covered_s
    if since_s:
        since_ms = now_ms - demand.local.age_ms - since_s * 1000
        return Need(max(_surge_rate(proving), planned_req_per_s), since_s, True, since_ms)
    local = demand.local
    if local.arrivals < policy.min_samples or local.req_per_s <= threshold:
        return None
    if poisson_tail(local.arrivals, planned_req_per_s * local.covered_s) > allowed:
        return None
    return Need(local.req_per_s, local.covered_s, False, now_ms)


def _surge_rate(proving: list[tuple[int, int]]) -> float:
    """The largest lower bound in requests/s over windows (covered seconds, arrivals)."""
    best = 0.0
    for covered_s, arrivals in sorted(proving, key=lambda seen: -seen[1] / seen[0]):
        if arrivals / covered_s <= best:
            break  # a bound lies below its mean, so no later window can be better
        best = max(best, lower_rate(arrivals, covered_s, ESTIMATE))
    return best


def is_over(demand: ModelDemand, planned_req_per_s: float, policy: Policy) -> bool:
    """Whether the mean of the local window is over the threshold, significant or not."""
    return demand.req_per_s > planned_req_per_s * (1.0 + policy.ratio)


def missed(
    demand: ModelDemand, percentile: float, planned_req_per_s: float, policy: Policy
) -> bool:
    """Whether requests miss their SLO, beyond chance and at a load that explains it.

    A second signal beside the rate: capacity is an estimate, and what users see is not. Misses
    are tested as a Poisson count against the share that the percentile allows. Below half of the
    planned load more capacity is no remedy, so this at most doubles a fleet.
    """
    local = demand.local
    if isinstance(local, NoData) or local.req_per_s < _LOADED * planned_req_per_s:
        return False
    ended = local.completions + local.failures + local.refused
    misses = ended - local.attained
    if misses < policy.min_samples:
        return False
    return poisson_tail(misses, ended * (1.0 - percentile)) <= policy.significance


def must_wait(
    need: Need,
    planned_req_per_s: float,
    last_action_ms: int,
    last_added_req_per_s: float,
    policy: Policy,
    now_ms: int,
) -> bool:
    """Whether the cool-down after the last action still holds this need back.

    It does not where what is missing now is at least as much as what was added last: then the
    last action plainly was not sized for this surge.
    """
    if now_ms - last_action_ms >= policy.cooldown_s * 1000:
        return False
    missing = need.req_per_s - planned_req_per_s
    return not (need.surge and missing >= max(last_added_req_per_s, 1e-9))
