"""The oracle: a lower bound of the cost of any policy, by the performance model.

The cost of each minute of the trace is the proven lower bound of a plan for exactly its arrivals,
without start-up time, transitions and headroom (utilization 1, even arrivals), and with nodes that
can be released at once. The bound is computed, not simulated, and attains the declared percentiles
by definition. Demand is rounded down to steps of a 25th of the peak, and minutes with equal demand
share a plan.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from autoscaler.domain.workload import Demand
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.plan import PlanStatus
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.policies.policy import PolicyContext

NAME = "oracle"
ABOUT = "lower bound: the planner's bound for each minute's demand, known beforehand, not simulated"
SPAN_S = 60.0
_LEVELS = 25


@dataclass(frozen=True, slots=True)
class Bound:
    """cost_usd: lower bound of the cost of any policy that meets the SLO, by the performance model.
    attainment: the declared percentiles, weighted by requests."""

    cost_usd: float
    attainment: float


def bound(context: PolicyContext) -> Bound:
    """The oracle's cost. Idle time before the first request is free."""
    scenario = context.scenario
    services = tuple(
        replace(s, utilization=1.0, min_instances=0, survive="none", req_per_s=0.0)
        for s in scenario.cluster.services
    )
    cluster = replace(scenario.cluster, services=services)
    spans = max(1, -(-int(scenario.duration_s) // int(SPAN_S)))
    counts = {service.model: [0] * spans for service in services}
    for arrival in scenario.arrivals:
        counts[arrival.model][min(spans - 1, int(arrival.at_s / SPAN_S))] += 1
    step = {model: max(1.0, max(found) / _LEVELS) for model, found in counts.items()}
    levels: Counter[tuple[int, ...]] = Counter()
    for index in range(spans):
        # Demand is rounded down, because the cost must be a lower bound.
        levels[tuple(int(counts[s.model][index] / step[s.model]) for s in services)] += 1
    usd = 0.0
    for level, many in sorted(levels.items()):
        demands = {
            s.model: Demand(
                s.model,
                scenario.weight_of(s.model) * n * step[s.model] / SPAN_S,
                context.lengths_of(s),
            )
            for s, n in zip(services, level, strict=True)
            if n
        }
        if not demands:
            continue
        problem = make_problem(
            cluster, demands, cluster_profile(cluster), options=PlanOptions(gap=0.01)
        )
        made = ShoalStrategy().solve(problem)
        if made.status is not PlanStatus.FAILED:
            usd += many * SPAN_S / 3600.0 * min(made.lower_bound_usd_per_h, made.cost_usd_per_h)
    asked = Counter(arrival.model for arrival in scenario.arrivals)
    total = sum(asked.values())
    share = sum(s.percentile * asked[s.model] for s in services) / total if total else 1.0
    return Bound(usd, share)
