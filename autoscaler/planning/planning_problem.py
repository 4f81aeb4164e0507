"""The planning problem: demand, candidates, running fleet, available nodes, and limits.

`make_problem` makes a problem from a declared cluster. It checks every number before any solver
gets it; errors name the wrong value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from autoscaler.domain.cluster import Cluster, Market, Pool, Service
from autoscaler.domain.combo import Combo
from autoscaler.domain.validation import InvalidValue, finite, whole
from autoscaler.domain.workload import Arrivals, Demand
from autoscaler.optimizer.result import Limits
from autoscaler.performance.profile import Profile
from autoscaler.planning.candidate_combos import candidate_combos, evaluate_combo, nearest_combos
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combo_usage import add_gpus
from autoscaler.planning.role_variants import best_roles
from autoscaler.planning.slo_feasibility import UnattainableSlo, unattainable_slo
from autoscaler.planning.workload_types import TypedDemand, typed_candidates, typed_demands

# Candidates that each ranking keeps. Large problems keep fewer, so that a single MIP can be solved.
_KEEP_FOR_PLANS = 16
_KEEP_PER_TYPE = 8
_NEGLIGIBLE_REQ_PER_S = 1e-6
_MOST_CANDIDATES = 5000
_HALF = 0.5


@dataclass(frozen=True, slots=True)
class PlanOptions(Limits):
    """Limits of one plan.

    hysteresis: capacity is reduced only if it exceeds the need by more than this share, so that
    small fluctuations of demand do not start and stop instances. allow_slo_miss: if no combo meets
    the SLO at the measured lengths and the declared percentile, use the nearest combos. Exception:
    a model gets no capacity if fewer than half of its requests can meet the SLO at the declared
    lengths. spare: share of the time that the search leaves to the caller if not all demand can be
    served.
    """

    gap: float = 1e-4
    time_limit_s: float = 30.0
    hysteresis: float = 0.0
    allow_slo_miss: bool = False
    spare: float = 0.0

    def __post_init__(self) -> None:
        finite("options.hold", self.hysteresis, 0.0, 1.0)
        finite("options.gap", self.gap, 0.0, 1.0)
        finite("options.time_limit_s", self.time_limit_s, 1e-3, 1e5)


class RolloutMode(Enum):
    """When the additions of a plan start, relative to its removals.

    SURGE: while all running instances stay. STEP: after one step of removals, which is as large as
    each model's disruption budget allows. RECREATE: after all removals; nodes and budget must
    suffice only for the final fleet.
    """

    SURGE = auto()
    STEP = auto()
    RECREATE = auto()


@dataclass(frozen=True, slots=True)
class Settling:
    """Instances of a running combo that started recently, and the penalty for each that leaves."""

    count: int
    leave_usd_per_h: float


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """One planning problem; `make_problem` makes it from a declared cluster.

    cluster: with current prices. demands: by model (a model without a demand is not planned and
    keeps its instances). candidates: by model, combos evaluated at the lengths of its demand.
    fleet: combo id -> count of running and starting instances; running: these combos, evaluated at
    current lengths. taken_gpus: GPUs per pool that instances outside `fleet` use. leaving_gpus:
    GPUs per pool of instances that are being removed, which additions cannot use yet. rented_nodes:
    nodes paid for now, per rented pool. obtainable: further nodes available, per rented pool (a
    missing pool: up to its declared maximum). scope: models that may change (empty = all).
    additions_only: all running instances and their nodes stay, including those in the scope.
    rollout_mode: see `RolloutMode`. scale_in_locked: models that keep at least their current
    capacity, even if they need less. switchable: running combos that may switch roles, with counts;
    None: all. settling: running combos with instances that started recently. unattainable_slos:
    models whose SLO no slice of their pools meets, with the nearest latencies. types: the demands
    by workload type, in budget mode. After node losses or a lower maximum, the fleet may need more
    nodes than the pools have; plans drop the excess.
    """

    cluster: Cluster
    demands: Mapping[str, Demand]
    candidates: Mapping[str, tuple[Combo, ...]]
    fleet: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, Combo] = field(default_factory=dict)
    taken_gpus: Mapping[str, int] = field(default_factory=dict)
    leaving_gpus: Mapping[str, int] = field(default_factory=dict)
    rented_nodes: Mapping[str, int] = field(default_factory=dict)
    obtainable: Mapping[str, int] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    additions_only: bool = False
    rollout_mode: RolloutMode = RolloutMode.RECREATE
    scale_in_locked: tuple[str, ...] = ()
    switchable: Mapping[str, int] | None = None
    settling: Mapping[str, Settling] = field(default_factory=dict)
    options: PlanOptions = field(default_factory=PlanOptions)
    unattainable_slos: Mapping[str, UnattainableSlo] = field(default_factory=dict)
    types: tuple[TypedDemand, ...] = ()

    def __post_init__(self) -> None:
        for model, demand in self.demands.items():
            self.cluster.service(model)
            if demand.model != model:
                raise InvalidValue(f"demand of {model}", demand.model, "the same model's demand")
        pools = {pool.id: pool for pool in self.cluster.pools}
        for model, combos in self.candidates.items():
            for combo in combos:
                _check_combo(pools, model, combo)
        for combo_id, count in self.fleet.items():
            whole(f"fleet: {combo_id}", count, 0, 1_000_000)
            if combo_id not in self.running:
                raise InvalidValue("fleet", combo_id, "combos that `running` describes")
            _check_combo(pools, self.running[combo_id].model, self.running[combo_id])
        for name in self.scope:
            self.cluster.service(name)
        for what in ("taken_gpus", "leaving_gpus", "rented_nodes", "obtainable"):
            for pool_id, count in getattr(self, what).items():
                if pool_id not in pools:
                    raise InvalidValue(what, pool_id, " or ".join(sorted(pools)))
                whole(f"{what}: {pool_id}", count, 0, 10**9)

    def is_planned(self, model: str) -> bool:
        """Whether `model` is planned: it has a demand and is in scope."""
        return model in self.demands and (not self.scope or model in self.scope)

    def can_be_served(self, model: str) -> bool:
        """Whether `model` has a candidate or a running combo."""
        return bool(self.candidates.get(model)) or bool(self.running_combos(model))

    def pools(self) -> dict[str, Pool]:
        """All pools by their ids."""
        return {pool.id: pool for pool in self.cluster.pools}

    def planned_models(self) -> tuple[str, ...]:
        """Models that may change, in the order of the cluster."""
        return tuple(s.model for s in self.cluster.services if self.is_planned(s.model))

    def needed_req_per_s(self, model: str) -> float:
        """Raw capacity that `model` needs: demand / utilization."""
        return self.demands[model].req_per_s / self.cluster.service(model).utilization

    def with_hysteresis(self, amount: float, reached: float) -> float:
        """The amount to plan for: `amount` plus the excess that the fleet already provides
        (`reached`), limited to the share `PlanOptions.hysteresis`.
        """
        return max(amount, min(reached, amount * (1.0 + self.options.hysteresis)))

    def running_combos(self, model: str) -> tuple[tuple[Combo, int], ...]:
        """Running combos of `model`, with their counts."""
        return tuple(
            (self.running[combo_id], count)
            for combo_id, count in self.fleet.items()
            if count and self.running[combo_id].model == model
        )

    def fixed_combos(self, model: str) -> tuple[tuple[Combo, int], ...]:
        """Combos of `model` that every plan keeps, with their counts."""
        stays = self.additions_only or not self.is_planned(model)
        return self.running_combos(model) if stays else ()

    def fixed_fleet(self) -> dict[str, int]:
        """Running combos that every plan keeps, because only additions are allowed or their model
        is not planned."""
        return {
            combo_id: count
            for combo_id, count in self.fleet.items()
            if count and (self.additions_only or not self.is_planned(self.running[combo_id].model))
        }

    def fixed_gpus(self) -> dict[str, int]:
        """GPUs per pool that are taken under every plan."""
        return self._with_gpus(self.taken_gpus, self.fixed_fleet())

    def gpus_now(self) -> dict[str, int]:
        """GPUs per pool that are taken now, including the GPUs of leaving instances."""
        used = Counter(self.taken_gpus)
        used.update(self.leaving_gpus)
        return self._with_gpus(used, self.fleet)

    def _with_gpus(self, taken: Mapping[str, int], fleet: Mapping[str, int]) -> dict[str, int]:
        return add_gpus(taken, ((self.running[i], count) for i, count in fleet.items()))

    def fixed_nodes(self, pool: Pool, gpus: int) -> int:
        """Nodes of `pool` that are billed under every plan if `gpus` GPUs of the pool are taken."""
        needed = -(-gpus // pool.per_node)
        return max(needed, self.nodes_now(pool)) if self.additions_only else needed

    def nodes_now(self, pool: Pool) -> int:
        """Nodes of `pool` that exist and are paid for: all nodes of an owned pool, the rented nodes
        of any other pool."""
        if pool.market is Market.OWNED:
            return pool.max_nodes
        rented = self.rented_nodes.get(pool.id, 0)
        return rented if self.additions_only else min(rented, pool.max_nodes)

    def rentable_nodes(self, pool: Pool) -> int:
        """Further nodes of `pool` that can be rented."""
        if pool.market is Market.OWNED:
            return 0
        room = max(0, pool.max_nodes - self.nodes_now(pool))
        return min(room, self.obtainable.get(pool.id, room))

    def now_usd_per_h(self) -> float:
        """Cost of all nodes that are rented now."""
        return sum(
            self.rented_nodes.get(pool.id, 0) * pool.price_usd_per_h
            for pool in self.cluster.pools
            if pool.market is not Market.OWNED
        )


def make_problem(
    cluster: Cluster,
    demands: Mapping[str, Demand],
    profile: Profile,
    fleet: Mapping[str, int] | None = None,
    rented_nodes: Mapping[str, int] | None = None,
    obtainable: Mapping[str, int] | None = None,
    prices_usd_per_h: Mapping[str, float] | None = None,
    scope: tuple[str, ...] = (),
    options: PlanOptions | None = None,
    additions_only: bool = False,
    taken_gpus: Mapping[str, int] | None = None,
    leaving_gpus: Mapping[str, int] | None = None,
    offered: Collection[str] | None = None,
) -> PlanningProblem:
    """The current planning problem of a declared cluster.

    fleet: combo id -> count. rented_nodes: by default the fewest nodes that hold the fleet.
    prices_usd_per_h: current price of a node by pool id, which replaces the declared price.
    offered: models that get candidates (None: all). Raises InvalidValue, which names it, for an
    unknown pool, combo or model, or a number that is not finite.
    """
    now = with_prices(cluster, prices_usd_per_h or {})
    running_counts = {combo_id: count for combo_id, count in (fleet or {}).items() if count}
    running = {}
    for combo_id in running_counts:
        model, _ = parse_combo_id(combo_id)
        service = now.service(model)
        demand = demands.get(model, Demand(model, 0.0, service.lengths))
        running[combo_id] = evaluate_combo(
            combo_id, now, service, demand.lengths, profile, arrivals_of(demand, service)
        )
    planned = {m: demand for m, demand in demands.items() if not scope or m in scope}
    places = len({(pool.region, pool.market) for pool in now.pools})
    each = _MOST_CANDIDATES // (4 * max(1, len(planned)) * max(1, places))
    keep = max(2, min(_KEEP_FOR_PLANS, each))
    options = options or PlanOptions()
    candidates: dict[str, tuple[Combo, ...]] = {}
    unreachable: dict[str, UnattainableSlo] = {}
    for model, demand in planned.items():
        if offered is not None and model not in offered:
            candidates[model] = ()
            continue
        service = now.service(model)
        arrivals = arrivals_of(demand, service)
        if now.policy.spends_budget:
            candidates[model] = typed_candidates(now, service, profile, min(keep, _KEEP_PER_TYPE))
            continue
        found = candidate_combos(now, service, demand.lengths, profile, keep, arrivals)
        if not found and options.allow_slo_miss and _half_attain_slo(now, service, profile):
            found = nearest_combos(now, service, demand.lengths, profile, keep, arrivals)
        elif not found:
            nearest = unattainable_slo(now, service, demand.lengths, profile)
            unreachable.update({} if nearest is None else {model: nearest})
        runs = [combo for combo in running.values() if combo.model == model]
        candidates[model] = (*found, *_role_variants(runs, found, now, service, demand, profile))
    types: list[TypedDemand] = []
    if now.policy.spends_budget:
        idle = all(demand.req_per_s <= 0.0 for demand in planned.values())
        for model, demand in planned.items():
            demand = replace(demand, req_per_s=1.0) if idle else demand
            ids = [combo.id for combo in candidates[model]]
            ids += [i for i, combo in running.items() if combo.model == model]
            types += typed_demands(now, now.service(model), demand, ids, profile)
    running = {
        i: _discounted_if_late(combo, candidates.get(combo.model, ()), options.allow_slo_miss)
        for i, combo in running.items()
    }
    least = fewest_nodes(now, [(running[i], n) for i, n in running_counts.items()])
    rented = {p.id: least.get(p.id, 0) for p in now.pools if p.market is not Market.OWNED}
    return PlanningProblem(
        cluster=now,
        demands=demands,
        candidates=candidates,
        fleet=running_counts,
        running=running,
        taken_gpus=taken_gpus or {},
        leaving_gpus=leaving_gpus or {},
        rented_nodes={**rented, **(rented_nodes or {})},
        obtainable=obtainable or {},
        scope=scope,
        additions_only=additions_only,
        options=options,
        unattainable_slos=unreachable,
        types=tuple(types),
    )


def _role_variants(
    running: Iterable[Combo],
    candidates: tuple[Combo, ...],
    cluster: Cluster,
    service: Service,
    demand: Demand,
    profile: Profile,
) -> list[Combo]:
    """Combos that a role switch can make of combos in `running`, except combos in `candidates`."""
    if not cluster.policy.switches_roles or service.scale_targets:
        return []
    arrivals = arrivals_of(demand, service)
    known = {combo.id for combo in candidates}
    best = {
        found.id: found
        for combo in running
        if (found := best_roles(combo, cluster, service, demand.lengths, profile, arrivals))
        is not combo
    }
    return [found for found in best.values() if found.id not in known]


def _half_attain_slo(cluster: Cluster, service: Service, profile: Profile) -> bool:
    """Whether at least half of the requests of `service`, at its declared lengths, can meet its
    SLO.

    If only the longest requests miss the SLO, serving the model is better than refusing it.
    """
    enough = replace(service, percentile=min(service.percentile, _HALF))
    return bool(candidate_combos(cluster, enough, service.lengths, profile))


def _discounted_if_late(combo: Combo, candidates: Iterable[Combo], late: bool) -> Combo:
    """`combo` with negligible capacity if it misses the SLO and other combos can meet it.

    The plan then replaces it, and until then it gets almost no requests. late: the model has no
    candidate that meets the SLO, so `combo` keeps its capacity.
    """
    if combo.meets_slo or (late and not any(other.meets_slo for other in candidates)):
        return combo
    return replace(combo, req_per_s=_NEGLIGIBLE_REQ_PER_S)


def arrivals_of(demand: Demand, service: Service) -> Arrivals:
    """The arrival process of `demand`, with its rate divided by the utilization of `service`."""
    return Arrivals(demand.req_per_s / service.utilization, demand.arrival_cv)


def with_prices(cluster: Cluster, prices_usd_per_h: Mapping[str, float]) -> Cluster:
    """`cluster` with these node prices; owned pools stay free."""
    if not prices_usd_per_h:
        return cluster
    known = {pool.id for pool in cluster.pools}
    for pool_id, price in prices_usd_per_h.items():
        if pool_id not in known:
            raise InvalidValue("price of pool", pool_id, " or ".join(sorted(known)))
        finite(f"price of {pool_id}", price, 0.0, 1e6)
    pools = tuple(
        replace(pool, price_usd_per_h=float(prices_usd_per_h[pool.id]))
        if pool.id in prices_usd_per_h and pool.market is not Market.OWNED
        else pool
        for pool in cluster.pools
    )
    return replace(cluster, pools=pools)


def fewest_nodes(cluster: Cluster, combos: Iterable[tuple[Combo, int]]) -> dict[str, int]:
    """Nodes per pool that `combos` need. Slices have powers of two of GPUs, so they fill nodes
    without gaps."""
    gpus = add_gpus({}, combos)
    return {p.id: -(-gpus[p.id] // p.per_node) for p in cluster.pools if p.id in gpus}


def _check_combo(pools: Mapping[str, Pool], model: str, combo: Combo) -> None:
    if combo.model != model:
        raise InvalidValue(f"candidate of {model}", combo.id, f"a combo of {model}")
    for member in combo.members:
        if member.pool not in pools:
            raise InvalidValue(f"combo {combo.id}: pool", member.pool, " or ".join(sorted(pools)))
        most = pools[member.pool].per_node
        if member.gpus > most:
            raise InvalidValue(f"combo {combo.id}: gpus", member.gpus, f"at most {most}, one node")
