"""Cost of an ideal fleet of whole nodes for a changing rate.

At each moment the ideal fleet is the cheapest plan for the present rate. Changes take no time and
cost nothing. Its cost is no lower bound, because a smaller fleet than the plan may also serve the
rate.
"""

from __future__ import annotations

from autoscaler.domain.workload import Demand
from autoscaler.planning.planner_messages import PlanRequest, Urgency
from autoscaler.simulation.virtual_planner import plan_in_process
from loadtests.decision_cases import Case, prepare

_MOMENTS = 144  # Moments of a day, one every ten minutes.


def ideal_usd(case: Case, seed: int) -> float:
    """Cost of the ideal fleet for `case` in USD, with the lengths that `seed` draws. The case must
    have a known rate."""
    prepared = prepare(case, seed)
    scenario, truth = prepared.scenario, prepared.truth
    (service,) = scenario.cluster.services
    span_s = scenario.end_s / _MOMENTS
    total = 0.0
    for moment in range(_MOMENTS):
        at_s = max(scenario.lead_s, (moment + 0.5) * span_s)
        rate = truth.rates[service.model](at_s)
        demand = Demand(service.model, rate, truth.lengths[service.model])
        request = PlanRequest(1, Urgency.FULL, 0, (demand,), scope=(service.model,))
        total += plan_in_process(request, scenario.cluster).cost_usd_per_h * span_s / 3600.0
    return total
