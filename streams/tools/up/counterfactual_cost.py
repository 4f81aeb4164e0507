"""The cost of other ways to serve the demand of a run.

There are four comparisons: a fleet sized for the peak, one GPU type only, each model planned alone,
and all models planned together. All use the same planner, prices, SLOs, spot shares and guarantees
(docs/how-to/read-a-run.md describes them). Pure; the caller's clock limits the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autoscaler.domain.cluster import Cluster, Market, Objective
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.performance.profile_sources import cluster_profile
from autoscaler.planning.plan import Plan, PlanStatus
from autoscaler.planning.planning_problem import PlanOptions, make_problem
from autoscaler.planning.strategies.registry import DEMAND_STRATEGY
from streams.tools.up.observed_demand import MINUTE_MS, DemandSeen
from streams.tools.up.run_state import Picture
from streams.tools.up.run_story import TOGETHER

_GAP = 0.005


class OutOfTime(Exception):
    """The time limit of the comparisons has passed."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a run. hours: the billed time of its nodes. demands: the demands of its busiest
    minute."""

    hours: float
    demands: tuple[Demand, ...]


@dataclass(frozen=True, slots=True)
class Otherwise:
    """One comparison. what: its name. usd: cost of the whole run.

    unserved: share of the demand that is not served, over all windows. detail: the chosen GPU type,
    if there is one.
    """

    what: str
    usd: float
    unserved: float
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        """The comparison as an entry of the summary."""
        found = {"what": self.what, "usd": round(self.usd, 4), "unserved": round(self.unserved, 4)}
        return {**found, "gpu": self.detail} if self.detail else found


def compare(
    cluster: Cluster,
    picture: Picture,
    until_ms: int,
    elapsed_s: Callable[[], float],
    limit_s: float,
) -> Iterator[Otherwise]:
    """Yields the comparisons for the demand in `picture`, one by one, until `limit_s`.

    until_ms: domain time of the run's end, when billing stopped.
    """
    from_ms, every_s = picture.first_launch_ms, cluster.policy.replan_every_s
    stretches = windows(picture.demand, from_ms, until_ms, every_s)
    # Budget mode is also compared with the cost of serving the whole demand.
    cluster = replace(cluster, policy=replace(cluster.policy, objective=Objective.COST))
    comparisons = Comparisons(cluster, cluster_profile(cluster), elapsed_s, limit_s)
    yield from comparisons.all(picture.demand, stretches)


def windows(seen: DemandSeen, from_ms: int, until_ms: int, every_s: float) -> list[Window]:
    """The billed time cut into windows of `every_s`, each with its busiest minute.

    The first window begins at `from_ms`, when the first node was started. For a window without
    requests, only the models' minimums are planned.
    """
    minutes = seen.minutes()
    if not minutes or until_ms <= from_ms:
        return []
    step = max(1, round(every_s * 1000.0 / MINUTE_MS))
    begins = range(minutes[0], until_ms // MINUTE_MS + 1, step)
    found = []
    for index, begin in enumerate(begins):
        start_ms = from_ms if index == 0 else begin * MINUTE_MS
        end_ms = min(until_ms, (begin + step) * MINUTE_MS)
        hours = (end_ms - start_ms) / 3_600_000.0
        if hours > 0.0:
            found.append(Window(hours, seen.peak(range(begin, begin + step))))
    return found


class Comparisons:
    """Plans for the observed demand. elapsed_s: a clock from 0. limit_s: the time limit."""

    def __init__(
        self, cluster: Cluster, profile: Profile, elapsed_s: Callable[[], float], limit_s: float
    ) -> None:
        self._cluster = cluster
        self._profile = profile
        self._elapsed_s = elapsed_s
        self._limit_s = limit_s
        self._strategy = DEMAND_STRATEGY

    def all(self, seen: DemandSeen, stretches: Sequence[Window]) -> Iterator[Otherwise]:
        """Yields the comparisons one by one, until the time limit."""
        if not stretches:
            return
        try:
            yield self.sized_for_the_peak(seen, stretches)
            one = self.one_gpu_type(stretches)
            if one is not None:
                yield one
            if len(self._cluster.services) > 1:
                yield self.each_model_alone(stretches)
                yield self.all_models_together(stretches)
        except OutOfTime:
            return

    def sized_for_the_peak(self, seen: DemandSeen, stretches: Sequence[Window]) -> Otherwise:
        """A constant fleet for the whole run, sized for every model's busiest minute."""
        demands = seen.peak(seen.minutes())
        made = self._plan(self._cluster, demands)
        hours = sum(window.hours for window in stretches)
        return Otherwise("sized for the peak", made.cost_usd_per_h * hours, _short(made, demands))

    def one_gpu_type(self, stretches: Sequence[Window]) -> Otherwise | None:
        """The best single GPU type to rent, planned again for each window. None if at most one type
        can be rented.

        Types are compared by the number of models that fit, then by unserved demand, then by cost.
        Owned nodes stay, because they cost the same in every comparison.
        """
        owned = tuple(pool for pool in self._cluster.pools if pool.market is Market.OWNED)
        rented = [pool for pool in self._cluster.pools if pool.market is not Market.OWNED]
        names = sorted({pool.gpu.name for pool in rented})
        if len(names) < 2:
            return None
        found = []
        for name in names:
            pools = (*owned, *(pool for pool in rented if pool.gpu.name == name))
            regions = {pool.region for pool in pools}
            services = tuple(
                replace(s, regions=tuple(r for r in s.regions if r in regions))
                for s in self._cluster.services
                if not s.regions or regions & set(s.regions)
            )
            cluster = replace(self._cluster, pools=pools, services=services)
            usd, unserved = self._over(cluster, stretches)
            homeless = len(self._cluster.services) - len(services)
            what = "one rented GPU type" if owned else "one GPU type"
            found.append((homeless, Otherwise(what, usd, unserved, name)))
        return min(found, key=lambda one: (one[0], round(one[1].unserved, 3), one[1].usd))[1]

    def each_model_alone(self, stretches: Sequence[Window]) -> Otherwise:
        """Plan one model after the other, by priority. Each model gets separate nodes, which later
        models cannot use."""
        order = sorted(self._cluster.services, key=lambda s: -s.priority)
        usd = missing = asked = 0.0
        for window in stretches:
            demands = {demand.model: demand for demand in window.demands}
            left = {pool.id: pool.max_nodes for pool in self._cluster.pools}
            for service in order:
                demand = demands.get(service.model)
                demand = demand or Demand(service.model, 0.0, service.lengths)
                pools = tuple(replace(p, max_nodes=left[p.id]) for p in self._cluster.pools)
                cluster = replace(self._cluster, pools=pools, services=(service,))
                made = self._plan(cluster, (demand,))
                usd += made.cost_usd_per_h * window.hours
                missing += _missing(made, (demand,)) * window.hours
                asked += demand.req_per_s * window.hours
                for pool_id, nodes in _nodes_used(made, cluster).items():
                    left[pool_id] -= nodes
        return Otherwise("each model alone", usd, missing / asked if asked else 0.0)

    def all_models_together(self, stretches: Sequence[Window]) -> Otherwise:
        """The declared cluster, planned again for each window as in the other comparisons."""
        usd, unserved = self._over(self._cluster, stretches)
        return Otherwise(TOGETHER, usd, unserved)

    def _over(self, cluster: Cluster, stretches: Sequence[Window]) -> tuple[float, float]:
        """(USD, unserved share) of `cluster`, planned for each of `stretches`. The demand of a
        model that `cluster` lacks is unserved."""
        housed = {service.model for service in cluster.services}
        usd = missing = asked = 0.0
        for window in stretches:
            demands = tuple(d for d in window.demands if d.model in housed)
            made = self._plan(cluster, demands) if housed else None
            served = -_missing(made, demands) if made is not None else 0.0
            served += sum(demand.req_per_s for demand in demands)
            usd += made.cost_usd_per_h * window.hours if made is not None else 0.0
            wanted = sum(demand.req_per_s for demand in window.demands)
            missing += (wanted - served) * window.hours
            asked += wanted * window.hours
        return usd, missing / asked if asked else 0.0

    def _plan(self, cluster: Cluster, demands: Sequence[Demand]) -> Plan:
        left_s = self._limit_s - self._elapsed_s()
        if left_s <= 0.0:
            raise OutOfTime
        wanted = {demand.model: demand for demand in demands}
        for service in cluster.services:
            wanted.setdefault(service.model, Demand(service.model, 0.0, service.lengths))
        options = PlanOptions(
            gap=_GAP, time_limit_s=self._limit_s, elapsed_s=self._elapsed_s
        )  # fmt: skip
        problem = make_problem(cluster, wanted, self._profile, options=options)
        made = self._strategy.solve(problem)
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


def _short(made: Plan, demands: Sequence[Demand]) -> float:
    asked = sum(demand.req_per_s for demand in demands)
    return _missing(made, demands) / asked if asked else 0.0


def _nodes_used(made: Plan, cluster: Cluster) -> dict[str, int]:
    """The number of nodes that the plan uses, by pool."""
    gpus: dict[str, int] = {}
    for target in made.targets:
        for pool_id, each in target.combo.gpus_by_pool().items():
            gpus[pool_id] = gpus.get(pool_id, 0) + each * target.count
    return {p.id: -(-gpus.get(p.id, 0) // p.per_node) for p in cluster.pools}
