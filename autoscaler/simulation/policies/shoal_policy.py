"""Shoal as a policy: the production controller and planner, and variants that each lack one part.

The knob replaces the declared percentile: the share of requests within the SLO for which every
model is planned. The target utilization would be no useful knob: the capacity of an instance is
defined at this utilization, so a lower value leaves the same headroom.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.estimate.model_demand import NO_HITS, ModelDemand
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.plan import Plan, Strategy
from autoscaler.planning.planner import answer_request
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.strategies.registry import strategy_for
from autoscaler.planning.strategies.shoal import ShoalStrategy
from autoscaler.simulation.controller_under_test import ControllerUnderTest, DemandFilter
from autoscaler.simulation.policies.policy import Policy, PolicyContext, PolicyRun
from autoscaler.simulation.strategies.homo import HomoStrategy

_KNOB = "planned share of requests within SLO"
_VALUES = (0.9, 0.95, 0.98, 0.99, 0.995)
_AS_DECLARED = 0.0
Change = Callable[[Cluster], Cluster]


def plan_with(request: PlanRequest, cluster: Cluster, strategy: Strategy) -> PlanAnswer:
    """Plan with the production planner, but with another strategy."""
    return answer_request(request, cluster, cluster_profile(cluster), strategy)


def build(
    context: PolicyContext,
    knob: float,
    change: Change | None = None,
    strategy: Strategy | None = None,
    demand_filter: DemandFilter | None = None,
) -> PolicyRun:
    """The production controller.

    knob: percentile, 0 = the declared one. change: applied to the cluster before the controller
    reads it. demand_filter: applied to the observed demand. strategy: strategy of the planner.
    """
    scenario = context.scenario
    cluster = change(scenario.cluster) if change else scenario.cluster
    if knob > 0.0:
        services = tuple(replace(s, percentile=knob) for s in cluster.services)
        cluster = replace(cluster, services=services)
    plan = partial(plan_with, strategy=strategy or strategy_for(cluster.policy))
    return PolicyRun(
        replace(scenario, cluster=cluster), ControllerUnderTest(demand_filter=demand_filter), plan
    )


def _policy_of(cluster: Cluster, **changes: float | str) -> Cluster:
    changed = replace(cluster.policy, **changes)  # type: ignore[arg-type]
    return replace(cluster, policy=changed)


def free_transitions(cluster: Cluster) -> Cluster:
    """Set the costs of starts, loads and role switches in plans to 0."""
    return _policy_of(cluster, k_start=0.0, k_load=0.0, k_switch=0.0)


def dear_switches(cluster: Cluster) -> Cluster:
    """Make a role switch cost more than a start, so that no plan contains a role switch."""
    return _policy_of(cluster, role_switch=False)


def without_forecast(cluster: Cluster) -> Cluster:
    """Plan for the current demand only."""
    return _policy_of(cluster, forecast="none")


@dataclass(frozen=True, slots=True)
class FilteredShoal:
    """Shoal's strategy, restricted to the candidates for which `keep` is true; if there are none,
    all candidates are used."""

    keep: Callable[[Combo, Mapping[str, str]], bool]
    name: str = "shoal"

    def solve(self, problem: PlanningProblem) -> Plan:
        """As `Shoal.solve`."""
        gpus = {pool.id: pool.gpu.name for pool in problem.cluster.pools}
        candidates = {
            model: tuple(c for c in combos if self.keep(c, gpus)) or tuple(combos)
            for model, combos in problem.candidates.items()
        }
        return ShoalStrategy().solve(replace(problem, candidates=candidates))


def of_one_gpu_type(combo: Combo, gpus: Mapping[str, str]) -> bool:
    """Whether all instances and nodes of `combo` have GPUs of one type."""
    return len({gpus[pool] for pool in combo.gpus_by_pool()}) == 1


def of_one_instance(combo: Combo, gpus: Mapping[str, str]) -> bool:
    """Whether `combo` is a single instance on one node."""
    del gpus
    return len(combo.members) == 1 and combo.members[0].count == 1


def local_window_only(demand: Mapping[str, ModelDemand]) -> Mapping[str, ModelDemand]:
    """Drop the spans that are shorter than the local window."""
    return {model: replace(one, recent=()) for model, one in demand.items()}


def without_hits(demand: Mapping[str, ModelDemand]) -> Mapping[str, ModelDemand]:
    """Drop the measured hits of prefix caches."""
    return {model: replace(one, prefix_hits=NO_HITS) for model, one in demand.items()}


def _variant(name: str, about: str, make: Callable[[PolicyContext, float], PolicyRun]) -> Policy:
    source = "autoscaler/decide.py, autoscaler/planning"
    return Policy(name, about, _KNOB, _AS_DECLARED, _VALUES, source, make)


SHOAL = _variant("shoal", "Shoal: the production controller and planner", build)
NO_TRANSITIONS = _variant(
    "shoal-no-transitions",
    "Shoal, planning as if starts and switches were free",
    partial(build, change=free_transitions),
)
NO_SURGE = _variant(
    "shoal-no-surge",
    "Shoal without the surge window: demand is measured over two minutes and more",
    partial(build, demand_filter=local_window_only),
)
NO_FORECAST = _variant(
    "shoal-no-forecast",
    "Shoal without a forecast: no instance starts for expected demand",
    partial(build, change=without_forecast),
)
NO_MIXED = _variant(
    "shoal-no-mixed",
    "Shoal without mixed templates: every combo on one type of GPU",
    partial(build, strategy=FilteredShoal(of_one_gpu_type)),
)
NO_PAIRS = _variant(
    "shoal-no-pairs",
    "Shoal with single instances only: no prefill-decode combos, no pipelines",
    partial(build, strategy=FilteredShoal(of_one_instance)),
)
NO_SWITCH = _variant(
    "shoal-no-switch",
    "Shoal without role switches in plans",
    partial(build, change=dear_switches),
)
NO_HITS_PLANNED = _variant(
    "shoal-no-hits",
    "Shoal, planning as if no prompt were in a prefix cache",
    partial(build, demand_filter=without_hits),
)
HOMO = Policy(
    "homo",
    "Shoal's controller with Coral's Homo as planner: homogeneous instances, one model at a time",
    _KNOB,
    _AS_DECLARED,
    _VALUES,
    "Coral (arXiv 2605.04357), section 6",
    partial(build, strategy=HomoStrategy()),
)
