"""Ours: the very fold and planner of production, and ours without each of its parts.

Owns what each variant leaves out. The knob is the share of requests that every model is planned
for, whatever share is declared: capacity is sized by it. (The target utilization is no knob: what
an instance is good for is measured at it, so a lower one leaves the same room.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.estimate.model_demand import ModelDemand
from autoscaler.performance.profile_sources import profile_of
from autoscaler.planning.plan import Plan, Strategy
from autoscaler.planning.planner import answer
from autoscaler.planning.planner_messages import PlanAnswer, PlanRequest
from autoscaler.planning.planning_problem import PlanningProblem
from autoscaler.planning.strategies.homo import Homo
from autoscaler.planning.strategies.registry import strategy_for
from autoscaler.planning.strategies.shoal import Shoal
from autoscaler.simulation.controller_under_test import LiveController, See
from autoscaler.simulation.policies.policy import Policy, Setting, Trial

_KNOB = "planned share of requests within SLO"
_VALUES = (0.9, 0.95, 0.98, 0.99, 0.995)
_AS_DECLARED = 0.0
Change = Callable[[Cluster], Cluster]


def plan_with(request: PlanRequest, cluster: Cluster, strategy: Strategy) -> PlanAnswer:
    """The real planner under another strategy."""
    return answer(request, cluster, profile_of(cluster), strategy)


def build(
    setting: Setting,
    knob: float,
    change: Change | None = None,
    strategy: Strategy | None = None,
    see: See | None = None,
) -> Trial:
    """The production controller. knob: percentile, 0 = as declared. change: of the cluster that
    it is told; see: of the demand that it sees; strategy: of its planner."""
    scenario = setting.scenario
    cluster = change(scenario.cluster) if change else scenario.cluster
    if knob > 0.0:
        services = tuple(replace(s, percentile=knob) for s in cluster.services)
        cluster = replace(cluster, services=services)
    plan = partial(plan_with, strategy=strategy or strategy_for(cluster.policy))
    return Trial(replace(scenario, cluster=cluster), LiveController(see=see), plan)


def _policy_of(cluster: Cluster, **changes: float | str) -> Cluster:
    changed = replace(cluster.policy, **changes)  # type: ignore[arg-type]
    return replace(cluster, policy=changed)


def free_transitions(cluster: Cluster) -> Cluster:
    """Starting, loading and switching cost the planner nothing."""
    return _policy_of(cluster, k_start=0.0, k_load=0.0, k_switch=0.0)


def dear_switches(cluster: Cluster) -> Cluster:
    """A role switch is dearer than a start, so none is made."""
    return _policy_of(cluster, k_switch=100.0)


def without_forecast(cluster: Cluster) -> Cluster:
    """Only what is asked now counts."""
    return _policy_of(cluster, forecast="none")


@dataclass(frozen=True, slots=True)
class Only:
    """Our planner, over the candidates that `keep` lets through, where any does."""

    keep: Callable[[Combo, Mapping[str, str]], bool]
    name: str = "shoal"

    def solve(self, problem: PlanningProblem) -> Plan:
        """As `Shoal`."""
        gpus = {pool.id: pool.gpu.name for pool in problem.cluster.pools}
        candidates = {
            model: tuple(c for c in combos if self.keep(c, gpus)) or tuple(combos)
            for model, combos in problem.candidates.items()
        }
        return Shoal().solve(replace(problem, candidates=candidates))


def of_one_gpu_type(combo: Combo, gpus: Mapping[str, str]) -> bool:
    """Whether all instances and nodes of `combo` have the same type of GPU."""
    return len({gpus[pool] for pool in combo.gpus_by_pool()}) == 1


def of_one_instance(combo: Combo, gpus: Mapping[str, str]) -> bool:
    """Whether `combo` is a single instance on one node."""
    del gpus
    return len(combo.members) == 1 and combo.members[0].count == 1


def local_window_only(demand: Mapping[str, ModelDemand]) -> Mapping[str, ModelDemand]:
    """Spans shorter than the local window are not seen."""
    return {model: replace(one, recent=()) for model, one in demand.items()}


def _variant(name: str, about: str, make: Callable[[Setting, float], Trial]) -> Policy:
    source = "autoscaler/decide.py, autoscaler/planning"
    return Policy(name, about, _KNOB, _AS_DECLARED, _VALUES, source, make, flows=True)


SHOAL = _variant("shoal", "ours: the production controller and planner", build)
NO_TRANSITIONS = _variant(
    "shoal-no-transitions",
    "ours, planning as if starts and switches were free",
    partial(build, change=free_transitions),
)
NO_SURGE = _variant(
    "shoal-no-surge",
    "ours without the surge window: demand is seen in windows of two minutes and more",
    partial(build, see=local_window_only),
)
NO_FORECAST = _variant(
    "shoal-no-forecast",
    "ours without a forecast: nothing is started for what is only expected",
    partial(build, change=without_forecast),
)
NO_MIXED = _variant(
    "shoal-no-mixed",
    "ours without mixed templates: every combo on one type of GPU",
    partial(build, strategy=Only(of_one_gpu_type)),
)
NO_PAIRS = _variant(
    "shoal-no-pairs",
    "ours with single instances only: no prefill-decode combos, no pipelines",
    partial(build, strategy=Only(of_one_instance)),
)
NO_SWITCH = _variant(
    "shoal-no-switch",
    "ours without role switches in plans",
    partial(build, change=dear_switches),
)
HOMO = Policy(
    "homo",
    "our loop with Coral's Homo as its planner: each model on homogeneous instances, one by one",
    _KNOB,
    _AS_DECLARED,
    _VALUES,
    "Coral (arXiv 2605.04357), section 6",
    partial(build, strategy=Homo()),
    flows=True,
)
