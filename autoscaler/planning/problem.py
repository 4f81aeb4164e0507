"""What a planner is given: demand, candidates, what runs, what can be had, and how far it may go.

Owns `PlanningProblem` with its checks, and making one from a declared cluster. Every number is
checked by name before any solver sees it. Knows no strategy and no solver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autoscaler.domain.checks import InvalidValue, finite, whole
from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.domain.combo import Combo
from autoscaler.domain.slices import SLICE_SIZES
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.planning.combos import candidate_combos, combo_named, parse_combo_id
from autoscaler.planning.usage import total_slices

if TYPE_CHECKING:
    from autoscaler.planning.plan import Plan

# How many candidates each order keeps; fewer in large problems, so that one MIP holds them all.
_KEEP_FOR_PLANS = 16
_MOST_CANDIDATES = 5000


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Limits of one plan.

    gap: relative, at which the search may stop. time_limit_s counts on `elapsed_s`, a monotonic
    clock of the caller that starts at 0 (the core reads none); without one, only work limits
    hold and the plan is reproducible. limit_disruption: the plan itself stays within each
    service's disruption budget (the waves of a transition do in any case).
    """

    gap: float = 1e-4
    time_limit_s: float = 30.0
    elapsed_s: Callable[[], float] | None = None
    seed: int = 1
    limit_disruption: bool = False

    def __post_init__(self) -> None:
        finite("options.gap", self.gap, 0.0, 1.0)
        finite("options.time_limit_s", self.time_limit_s, 1e-3, 1e5)


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """One planning problem; `make_problem` fills it from a declared cluster.

    cluster: with the prices of this moment. demands: per model (a model without one is not
    planned and keeps what it runs). candidates: per model, combos at that demand's lengths.
    fleet: combo id -> how many run or start; running: those combos at today's lengths.
    rented_nodes: nodes paid for now, per rented pool. obtainable: further nodes that can be had,
    per rented pool (a pool not named: up to its declared maximum). scope: models that may change
    (empty = all). last_good: stands when no plan can be made.
    """

    cluster: Cluster
    demands: Mapping[str, Demand]
    candidates: Mapping[str, tuple[Combo, ...]]
    fleet: Mapping[str, int] = field(default_factory=dict)
    running: Mapping[str, Combo] = field(default_factory=dict)
    rented_nodes: Mapping[str, int] = field(default_factory=dict)
    obtainable: Mapping[str, int] = field(default_factory=dict)
    scope: tuple[str, ...] = ()
    options: PlanOptions = field(default_factory=PlanOptions)
    last_good: Plan | None = None

    def __post_init__(self) -> None:
        for model, demand in self.demands.items():
            self.cluster.service(model)
            if demand.model != model:
                raise InvalidValue(f"demand of {model}", demand.model, "the same model's demand")
        for model, combos in self.candidates.items():
            for combo in combos:
                _check_combo(self.cluster, model, combo)
        for combo_id, count in self.fleet.items():
            whole(f"fleet: {combo_id}", count, 0, 1_000_000)
            if combo_id not in self.running:
                raise InvalidValue("fleet", combo_id, "combos that `running` describes")
            _check_combo(self.cluster, self.running[combo_id].model, self.running[combo_id])
        for name in self.scope:
            self.cluster.service(name)
        for what in ("rented_nodes", "obtainable"):
            for pool_id, count in getattr(self, what).items():
                self.cluster.pool(pool_id)
                whole(f"{what}: {pool_id}", count, 0, 10**9)
        for pool_id, gpus in self.running_gpus().items():
            pool = self.cluster.pool(pool_id)
            room = self.nodes_now(pool) * pool.per_node
            if gpus > room:
                raise InvalidValue(f"fleet: GPUs in {pool_id}", gpus, f"at most {room}")

    def may_change(self, model: str) -> bool:
        """Whether `model` is planned: it has a demand and is in scope."""
        return model in self.demands and (not self.scope or model in self.scope)

    def can_be_served(self, model: str) -> bool:
        """Whether any combo could serve `model`, or one runs."""
        return bool(self.candidates.get(model)) or any(
            n and self.running[i].model == model for i, n in self.fleet.items()
        )

    def planned_models(self) -> tuple[str, ...]:
        """Models that may change, in the order of the cluster."""
        return tuple(s.model for s in self.cluster.services if self.may_change(s.model))

    def needed_req_per_s(self, model: str) -> float:
        """Raw capacity that `model` needs: demand / utilization."""
        return self.demands[model].req_per_s / self.cluster.service(model).utilization

    def running_gpus(self) -> dict[str, int]:
        """GPUs in use per pool."""
        used: dict[str, int] = {}
        for combo_id, count in self.fleet.items():
            for pool_id, gpus in self.running[combo_id].gpus_by_pool().items():
                used[pool_id] = used.get(pool_id, 0) + gpus * count
        return used

    def fixed(self) -> dict[str, int]:
        """Running combos that must stay as they are, because their model may not change."""
        return {
            combo_id: count
            for combo_id, count in self.fleet.items()
            if count and not self.may_change(self.running[combo_id].model)
        }

    def nodes_now(self, pool: Pool) -> int:
        """Nodes of `pool` that are there and paid for: all owned ones, the rented ones."""
        if pool.market is Market.OWNED:
            return pool.max_nodes
        return self.rented_nodes.get(pool.id, 0)

    def nodes_to_get(self, pool: Pool) -> int:
        """Further nodes of `pool` that can be rented."""
        if pool.market is Market.OWNED:
            return 0
        room = max(0, pool.max_nodes - self.nodes_now(pool))
        return min(room, self.obtainable.get(pool.id, room))


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
    last_good: Plan | None = None,
) -> PlanningProblem:
    """The planning problem of a declared cluster at this moment.

    fleet: combo id -> count. rented_nodes: left out, the fewest that hold the fleet.
    prices_usd_per_h: per pool id and node, replaces the declared price. InvalidValue names what
    cannot be: an unknown pool, combo or model, a number that is not finite.
    """
    now = with_prices(cluster, prices_usd_per_h or {})
    running_counts = {combo_id: count for combo_id, count in (fleet or {}).items() if count}
    running = {}
    for combo_id in running_counts:
        model, _ = parse_combo_id(combo_id)
        service = now.service(model)
        lengths = demands[model].lengths if model in demands else service.lengths
        running[combo_id] = combo_named(combo_id, now, service, lengths, profile)
    planned = {m: demand for m, demand in demands.items() if not scope or m in scope}
    candidates = _candidates(now, planned, profile, _KEEP_FOR_PLANS)
    total = sum(map(len, candidates.values()))
    if total > _MOST_CANDIDATES:
        fewer = max(2, _KEEP_FOR_PLANS * _MOST_CANDIDATES // total)
        candidates = _candidates(now, planned, profile, fewer)
    least = fewest_nodes(now, [(running[i], n) for i, n in running_counts.items()])
    rented = {p.id: least.get(p.id, 0) for p in now.pools if p.market is not Market.OWNED}
    return PlanningProblem(
        cluster=now,
        demands=demands,
        candidates=candidates,
        fleet=running_counts,
        running=running,
        rented_nodes={**rented, **(rented_nodes or {})},
        obtainable=obtainable or {},
        scope=scope,
        options=options or PlanOptions(),
        last_good=last_good,
    )


def _candidates(
    cluster: Cluster, demands: Mapping[str, Demand], profile: Profile, keep: int
) -> dict[str, tuple[Combo, ...]]:
    return {
        model: candidate_combos(cluster, cluster.service(model), demand.lengths, profile, keep)
        for model, demand in demands.items()
    }


def with_prices(cluster: Cluster, prices_usd_per_h: Mapping[str, float]) -> Cluster:
    """`cluster` with these node prices; owned pools stay free at the margin."""
    for pool_id, price in prices_usd_per_h.items():
        finite(f"price of {cluster.pool(pool_id).id}", price, 0.0, 1e6)
    pools = tuple(
        replace(pool, price_usd_per_h=float(prices_usd_per_h[pool.id]))
        if pool.id in prices_usd_per_h and pool.market is not Market.OWNED
        else pool
        for pool in cluster.pools
    )
    return replace(cluster, pools=pools)


def fewest_nodes(cluster: Cluster, combos: list[tuple[Combo, int]]) -> dict[str, int]:
    """Nodes per pool that hold `combos`: power-of-two slices fill nodes without a rest."""
    total = total_slices([combo for combo, _ in combos], [count for _, count in combos])
    return {
        pool_id: -(
            -sum(size * count for size, count in zip(SLICE_SIZES, blocks, strict=True))
            // cluster.pool(pool_id).per_node
        )
        for pool_id, blocks in total.items()
    }


def _check_combo(cluster: Cluster, model: str, combo: Combo) -> None:
    if combo.model != model:
        raise InvalidValue(f"candidate of {model}", combo.id, f"a combo of {model}")
    for member in combo.members:
        pool = cluster.pool(member.pool)
        if member.gpus > pool.per_node:
            raise InvalidValue(
                f"combo {combo.id}: gpus", member.gpus, f"at most {pool.per_node}, one node"
            )
