"""Choose the setting of a policy's knob: the cheapest one that meets the SLOs on another trace.

Every policy is tuned in the same way, including Shoal's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from streams.tools.backtest.backtest_demand import Workload
from streams.tools.backtest.backtest_runs import Outcome


def chosen(outcomes: Sequence[Outcome], workload: Workload) -> dict[str, float]:
    """The setting of each policy's knob.

    It is the cheapest setting whose attainment, weighted by requests, reaches the declared
    percentile. If none reaches it, it is the setting with the highest attainment.
    """
    asked = Counter(arrival.model for arrival in workload.scenario.arrivals)
    services = workload.scenario.cluster.services
    target = sum(s.percentile * asked[s.model] for s in services) / max(1, sum(asked.values()))
    by_policy: dict[str, list[tuple[float, float, float]]] = {}
    for outcome in outcomes:
        if outcome.score is not None:
            found = outcome.score.cost_usd, outcome.score.slo_attainment, outcome.run.knob
            by_policy.setdefault(outcome.run.policy, []).append(found)
    best = {}
    for policy, points in by_policy.items():
        enough = [point for point in points if point[1] >= target]
        if enough:
            best[policy] = min(enough)[2]
        else:
            best[policy] = max(points, key=lambda point: (point[1], -point[0]))[2]
    return best
