"""Fixed fleets: the cheapest that attains a target in simulation, and the one sized for the peak.

Owns the two set-ups. The first knows the whole trace (it was found by simulating fleets on it); the
second is what planning for the highest demand costs.
"""

from __future__ import annotations

from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Demand
from autoscaler.explain.text import text_with_subject
from autoscaler.planning.planner_messages import Outcome, PlanRequest, Urgency
from autoscaler.simulation.fixed_fleet import FixedFleet
from autoscaler.simulation.fleet_search import sweep
from autoscaler.simulation.policies.policy import Policy, Setting, Trial
from autoscaler.simulation.virtual_planner import plan_in_process


def best(setting: Setting, target: float) -> Trial:
    """The cheapest fleet of each model whose requests attain `target`; where none does, the one
    sized for the peak."""
    scenario = setting.scenario
    counts: dict[str, int] = {}
    fallback: dict[str, int] | None = None
    for service in scenario.cluster.services:
        if service.model not in setting.lengths:
            continue
        found = sweep(scenario, setting.lengths, service.model, (target,)).found[target]
        if found is not None:
            counts.update(found.counts)
            continue
        fallback = fallback if fallback is not None else _planned(setting, 1.0)
        counts.update({c: n for c, n in fallback.items() if c.startswith(f"{service.model}:")})
    return _fleet(setting, counts)


def peak(setting: Setting, factor: float) -> Trial:
    """The planner's fleet for `factor` times the peak of each model."""
    return _fleet(setting, _planned(setting, factor))


def _fleet(setting: Setting, counts: dict[str, int]) -> Trial:
    cluster = setting.scenario.cluster
    return Trial(setting.scenario, FixedFleet(counts, cluster, setting.lengths))


def _planned(setting: Setting, factor: float) -> dict[str, int]:
    cluster = setting.scenario.cluster
    demands = tuple(
        Demand(s.model, factor * setting.peak_of(s), setting.lengths_of(s))
        for s in cluster.services
    )
    request = PlanRequest(1, Urgency.FULL, 0, demands, scope=tuple(d.model for d in demands))
    found = plan_in_process(request, cluster)
    if found.outcome is Outcome.NONE:
        raise InvalidValue(
            "fixed-peak", "; ".join(map(text_with_subject, found.notes)), "a plan for the peak"
        )
    return {combo: count for combo, count in found.counts if count}


BEST = Policy(
    "fixed-best",
    "cheapest fixed fleet, found by simulating fleets on this very trace, any mix of GPU slices",
    "attainment that it has to reach",
    0.95,
    (0.9, 0.95, 0.97, 0.99),
    "search by simulation (autoscaler/simulation/fleet_search.py)",
    best,
    tuned=False,
)

PEAK = Policy(
    "fixed-peak",
    "fixed fleet planned for the peak (p99 of 10 s rates), by our planner",
    "multiple of the peak",
    1.0,
    (0.5, 0.75, 1.0, 1.25),
    "autoscaler/planning",
    peak,
    flows=True,
)
