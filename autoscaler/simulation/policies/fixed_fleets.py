"""Fixed fleets: the cheapest fleet that attains a target in simulation, and a fleet sized for the
peak.

The first fleet uses knowledge of the whole trace: it is found by simulating fleets on it. The
second fleet shows the cost of planning for the highest demand.
"""

from __future__ import annotations

from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.explain.reason_texts import text_with_subject
from autoscaler.planning.planner_messages import Outcome, PlanRequest, Urgency
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.fleet_search import FleetSearch
from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.virtual_planner import plan_in_process


def best(context: PolicyContext, target: float) -> PolicyRun:
    """The cheapest fleet of each model whose requests attain `target`; if no fleet does, the fleet
    that is sized for the peak."""
    scenario = context.scenario
    counts: dict[str, int] = {}
    fallback: dict[str, int] | None = None
    for service in scenario.cluster.services:
        if service.model not in context.lengths:
            continue
        search = context.searches.setdefault(
            service.model,
            FleetSearch(scenario, context.lengths, service.model, context.fluid),
        )
        fleet = search.cheapest(target)
        if fleet is not None:
            counts.update(fleet.counts)
            continue
        fallback = fallback if fallback is not None else _planned(context, 1.0)
        counts.update({c: n for c, n in fallback.items() if c.startswith(f"{service.model}:")})
    return _fleet(context, counts)


def peak(context: PolicyContext, factor: float) -> PolicyRun:
    """The planner's fleet for `factor` times the peak of each model. Raises InvalidValue if there
    is no plan."""
    return _fleet(context, _planned(context, factor))


def _fleet(context: PolicyContext, counts: dict[str, int]) -> PolicyRun:
    cluster = context.scenario.cluster
    fleet = FixedFleet(counts, cluster, context.lengths)
    return PolicyRun(context.scenario, fleet, key=tuple(sorted(counts.items())))


def _planned(context: PolicyContext, factor: float) -> dict[str, int]:
    cluster = context.scenario.cluster
    demands = tuple(
        Demand(s.model, factor * context.peak_of(s), context.lengths_of(s))
        for s in cluster.services
    )
    request = PlanRequest(1, Urgency.FULL, 0, demands, scope=tuple(d.model for d in demands))
    answer = plan_in_process(request, cluster)
    if answer.outcome is Outcome.NONE:
        raise InvalidValue(
            "fixed-peak", "; ".join(map(text_with_subject, answer.notes)), "a plan for the peak"
        )
    return {combo: count for combo, count in answer.counts if count}


BEST = Policy(
    "fixed-best",
    "cheapest fixed fleet, found by simulating fleets on the same trace, any mix of GPU slices",
    "attainment to reach",
    0.95,
    (0.9, 0.95, 0.97, 0.99),
    "search by simulation (autoscaler/simulation/fleet_search.py)",
    best,
    tuned=False,
)

PEAK = Policy(
    "fixed-peak",
    "fixed fleet planned for the peak (p99 of 10 s rates), by Shoal's planner",
    "multiple of the peak",
    1.0,
    (0.5, 0.75, 1.0, 1.25),
    "autoscaler/planning",
    peak,
)
