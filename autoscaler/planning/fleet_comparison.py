"""The hourly cost of other ways to serve a demand: one GPU type only, each model planned alone, and
all models planned together.

All use the same planner, prices, SLOs, spot shares and guarantees. Pure; the caller's clock limits
the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.cluster import Cluster, Market, Objective
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.planning.strategies.registry import DEMAND_STRATEGY

_GAP = 0.005


class OutOfTime(Exception):
    """The time limit of the comparisons has passed."""


@dataclass(frozen=True, slots=True)
class FleetCost:
    """usd_per_h: cost of the nodes. unserved_req_per_s: part of the demand that they do not serve.
    homeless: number of models that fit on none of the nodes."""

    usd_per_h: float
    unserved_req_per_s: float
    homeless: int = 0


class FleetComparison:
    """Plans other fleets for demands. elapsed_s: a clock from 0. limit_s: the time limit, after
    which every method raises OutOfTime."""

    def __init__(
        self, cluster: Cluster, profile: Profile, elapsed_s: Callable[[], float], limit_s: float
    ) -> None:
        # Budget mode is also compared with the cost of serving the whole demand.
        policy = replace(cluster.policy, objective=Objective.COST)
        self._cluster = replace(cluster, policy=policy)
        self._profile = profile
        self._elapsed_s = elapsed_s
        self._limit_s = limit_s

    @property
    def has_owned_nodes(self) -> bool:
        """Whether the cluster declares nodes that cost nothing. They are part of every fleet."""
        return any(pool.market is Market.OWNED for pool in self._cluster.pools)

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """The GPU types that can be rented."""
        rented = (pool for pool in self._cluster.pools if pool.market is not Market.OWNED)
        return tuple(sorted({pool.gpu.name for pool in rented}))

    def together(self, demands: Sequence[Demand]) -> FleetCost:
        """All models planned together, on all GPU types."""
        made = self._plan(self._cluster, demands)
        return FleetCost(made.cost_usd_per_h, _missing(made, demands))

    def on_one_type(self, gpu: str, demands: Sequence[Demand]) -> FleetCost:
        """All models planned together on rented nodes with `gpu`, and on the owned nodes."""
        pools = tuple(
            pool
            for pool in self._cluster.pools
            if pool.market is Market.OWNED or pool.gpu.name == gpu
        )
        regions = {pool.region for pool in pools}
        services = tuple(
            replace(s, regions=tuple(r for r in s.regions if r in regions))
            for s in self._cluster.services
            if not s.regions or regions & set(s.regions)
        )
        homeless = len(self._cluster.services) - len(services)
        housed = {service.model for service in services}
        own = tuple(demand for demand in demands if demand.model in housed)
        outside = sum(demand.req_per_s for demand in demands) - sum(d.req_per_s for d in own)
        if not services:
            return FleetCost(0.0, outside, homeless)
        made = self._plan(replace(self._cluster, pools=pools, services=services), own)
        return FleetCost(made.cost_usd_per_h, _missing(made, own) + outside, homeless)

    def each_alone(self, demands: Sequence[Demand]) -> FleetCost:
        """One model planned after the other, by priority. Each model gets separate nodes, which
        later models cannot use."""
        known = {demand.model: demand for demand in demands}
        left = {pool.id: pool.max_nodes for pool in self._cluster.pools}
        usd_per_h = missing = 0.0
        for service in sorted(self._cluster.services, key=lambda s: -s.priority):
            demand = known.get(service.model) or Demand(service.model, 0.0, service.lengths)
            pools = tuple(replace(p, max_nodes=left[p.id]) for p in self._cluster.pools)
            cluster = replace(self._cluster, pools=pools, services=(service,))
            made = self._plan(cluster, (demand,))
            usd_per_h += made.cost_usd_per_h
            missing += _missing(made, (demand,))
            for pool_id, nodes in _nodes_used(made, cluster).items():
                left[pool_id] -= nodes
        return FleetCost(usd_per_h, missing)

    def _plan(self, cluster: Cluster, demands: Sequence[Demand]) -> Plan:
        if self._elapsed_s() >= self._limit_s:
            raise OutOfTime
        wanted = {demand.model: demand for demand in demands}
        for service in cluster.services:
            wanted.setdefault(service.model, Demand(service.model, 0.0, service.lengths))
        options = PlanOptions(
            gap=_GAP, time_limit_s=self._limit_s, elapsed_s=self._elapsed_s
        )  # fmt: skip
        made = DEMAND_STRATEGY.solve(make_problem(cluster, wanted, self._profile, options=options))
        if made.status is PlanStatus.FAILED:
            raise OutOfTime
        return made


def _missing(made: Plan, demands: Sequence[Demand]) -> float:
    """Requests/s of `demands` that the plan leaves unserved. If any instance of a model misses the
    SLO, all requests of the model count as unserved."""
    found = 0.0
    for demand in demands:
        late = any(t.count and not t.combo.meets_slo for t in made.targets_of(demand.model))
        short = made.shortfall_req_per_s.get(demand.model, 0.0)
        found += demand.req_per_s if late else min(short, demand.req_per_s)
    return found


def _nodes_used(made: Plan, cluster: Cluster) -> dict[str, int]:
    """The number of nodes that the plan uses, by pool."""
    gpus: dict[str, int] = {}
    for target in made.targets:
        for pool_id, each in target.combo.gpus_by_pool().items():
            gpus[pool_id] = gpus.get(pool_id, 0) + each * target.count
    return {p.id: -(-gpus.get(p.id, 0) // p.per_node) for p in cluster.pools}
