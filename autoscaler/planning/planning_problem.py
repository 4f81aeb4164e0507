"""What a planner is given: demand, candidates, what runs, what can be had, and how far it may go.

Owns `PlanningProblem` with its checks, and making one from a declared cluster. Every number is
checked by name before any solver sees it. Knows no strategy and no solver.
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
from autoscaler.planning.candidate_combos import candidate_combos, combo_named, late_combos
from autoscaler.planning.combo_names import parse_combo_id
from autoscaler.planning.combo_usage import add_gpus
from autoscaler.planning.role_variants import best_roles
from autoscaler.planning.slo_feasibility import OutOfReach, out_of_reach
from autoscaler.planning.workload_types import TypedDemand, typed_candidates, typed_demands

# How many candidates each order keeps; fewer in large problems, so that one MIP holds them all.
_KEEP_FOR_PLANS = 16
_KEEP_PER_TYPE = 8
_NEXT_TO_NOTHING = 1e-6
_MOST_CANDIDATES = 5000
_SOME = 0.5


@dataclass(frozen=True, slots=True)
class PlanOptions(Limits):
    """Limits of one plan, and what is asked for.

    hold: a fleet that covers what is needed is not made smaller than
    this share above the need, so that a demand that goes up and down by less does not start and
    stop instances. late: where the lengths that were measured put an SLO out of reach of the
    declared percentile, serve on what comes nearest; where not even half of the requests can attain
    it at the declared lengths, nothing is bought in any case. spare: the share of the time that is
    left to the caller where not all demand can be served.
    """

    gap: float = 1e-4
    time_limit_s: float = 30.0
    hold: float = 0.0
    late: bool = False
    spare: float = 0.0

    def __post_init__(self) -> None:
        finite("options.hold", self.hold, 0.0, 1.0)
        finite("options.gap", self.gap, 0.0, 1.0)
        finite("options.time_limit_s", self.time_limit_s, 1e-3, 1e5)


class Room(Enum):
    """Where a plan's additions find their place and their money. BESIDE all that runs now; AFTER as
    much of each model has left as its disruption budget allows at a time; LATER: whenever."""

    BESIDE = auto()
    AFTER = auto()
    LATER = auto()


@dataclass(frozen=True, slots=True)
class PlanningProblem:
    """One planning problem; `make_problem` fills it from a declared cluster.

    cluster: with the prices of this moment. demands: per model (a model without one is not
    planned and keeps what it runs). candidates: per model, combos at that demand's lengths.
    fleet: combo id -> how many run or start; running: those combos at today's lengths.
    taken_gpus: GPUs per pool used by what is neither in `fleet` nor planned here; leaving_gpus: by
    what is on its way out, so that nothing can be added there yet.
    rented_nodes: nodes paid for now, per rented pool. obtainable: further nodes that can be had,
    per rented pool (a pool not named: up to its declared maximum). scope: models that may change
    (empty = all). additions_only: what runs stays, in the scope too, and so do its nodes. room:
    where what is added finds its place, and the budget for it. keeps: models that have as much
    capacity afterwards as before, whatever they need. switchable: how many of which running combos
    may take other roles, None: all.
    unreachable: models whose SLO no slice of their pools meets, with how near one comes.
    types: the demands by workload type, where the policy makes the most of a budget.
    The fleet may need more than the pools have now
    (nodes were lost, a maximum was lowered): what does not fit cannot be kept.
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
    room: Room = Room.LATER
    keeps: tuple[str, ...] = ()
    switchable: Mapping[str, int] | None = None
    options: PlanOptions = field(default_factory=PlanOptions)
    unreachable: Mapping[str, OutOfReach] = field(default_factory=dict)
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

    def may_change(self, model: str) -> bool:
        """Whether `model` is planned: it has a demand and is in scope."""
        return model in self.demands and (not self.scope or model in self.scope)

    def can_be_served(self, model: str) -> bool:
        """Whether any combo could serve `model`, or one runs."""
        return bool(self.candidates.get(model)) or bool(self.running_of(model))

    def pools(self) -> dict[str, Pool]:
        """All pools by their ids."""
        return {pool.id: pool for pool in self.cluster.pools}

    def planned_models(self) -> tuple[str, ...]:
        """Models that may change, in the order of the cluster."""
        return tuple(s.model for s in self.cluster.services if self.may_change(s.model))

    def needed_req_per_s(self, model: str) -> float:
        """Raw capacity that `model` needs: demand / utilization."""
        return self.demands[model].req_per_s / self.cluster.service(model).utilization

    def held(self, amount: float, reached: float) -> float:
        """What to ask for where `amount` is needed and the fleet reaches `reached`: see hold."""
        return max(amount, min(reached, amount * (1.0 + self.options.hold)))

    def running_of(self, model: str) -> tuple[tuple[Combo, int], ...]:
        """Combos of `model` that run, with their counts."""
        return tuple(
            (self.running[combo_id], count)
            for combo_id, count in self.fleet.items()
            if count and self.running[combo_id].model == model
        )

    def standing_of(self, model: str) -> tuple[tuple[Combo, int], ...]:
        """Combos of `model` that stay whatever the plan is, with their counts."""
        stays = self.additions_only or not self.may_change(model)
        return self.running_of(model) if stays else ()

    def standing(self) -> dict[str, int]:
        """Running combos that must stay as they are: only additions are wanted, or their model
        may not change."""
        return {
            combo_id: count
            for combo_id, count in self.fleet.items()
            if count and (self.additions_only or not self.may_change(self.running[combo_id].model))
        }

    def standing_gpus(self) -> dict[str, int]:
        """GPUs per pool that are taken whatever the plan is."""
        return self._with_gpus(self.taken_gpus, self.standing())

    def gpus_now(self) -> dict[str, int]:
        """GPUs per pool that are taken now, by what leaves too."""
        used = Counter(self.taken_gpus)
        used.update(self.leaving_gpus)
        return self._with_gpus(used, self.fleet)

    def _with_gpus(self, taken: Mapping[str, int], fleet: Mapping[str, int]) -> dict[str, int]:
        return add_gpus(taken, ((self.running[i], count) for i, count in fleet.items()))

    def standing_nodes(self, pool: Pool, gpus: int) -> int:
        """Nodes of `pool` that are billed whatever the plan is, with `gpus` taken on them."""
        needed = -(-gpus // pool.per_node)
        return max(needed, self.nodes_now(pool)) if self.additions_only else needed

    def nodes_now(self, pool: Pool) -> int:
        """Nodes of `pool` that are there and paid for: all owned ones, the rented ones."""
        if pool.market is Market.OWNED:
            return pool.max_nodes
        rented = self.rented_nodes.get(pool.id, 0)
        return rented if self.additions_only else min(rented, pool.max_nodes)

    def nodes_to_get(self, pool: Pool) -> int:
        """Further nodes of `pool` that can be rented."""
        if pool.market is Market.OWNED:
            return 0
        room = max(0, pool.max_nodes - self.nodes_now(pool))
        return min(room, self.obtainable.get(pool.id, room))

    def now_usd_per_h(self) -> float:
        """The bill of all nodes that are rented now."""
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
    """The planning problem of a declared cluster at this moment.

    fleet: combo id -> count. rented_nodes: left out, the fewest that hold the fleet.
    prices_usd_per_h: per pool id and node, replaces the declared price. offered: models for which
    candidates are put together (None: all). InvalidValue names what cannot be: an unknown pool,
    combo or model, a number that is not finite.
    """
    now = with_prices(cluster, prices_usd_per_h or {})
    running_counts = {combo_id: count for combo_id, count in (fleet or {}).items() if count}
    running = {}
    for combo_id in running_counts:
        model, _ = parse_combo_id(combo_id)
        service = now.service(model)
        demand = demands.get(model, Demand(model, 0.0, service.lengths))
        running[combo_id] = combo_named(
            combo_id, now, service, demand.lengths, profile, arrivals_of(demand, service)
        )
    planned = {m: demand for m, demand in demands.items() if not scope or m in scope}
    places = len({(pool.region, pool.market) for pool in now.pools})
    each = _MOST_CANDIDATES // (4 * max(1, len(planned)) * max(1, places))
    keep = max(2, min(_KEEP_FOR_PLANS, each))
    options = options or PlanOptions()
    candidates: dict[str, tuple[Combo, ...]] = {}
    unreachable: dict[str, OutOfReach] = {}
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
        if not found and options.late and _some_attain(now, service, profile):
            found = late_combos(now, service, demand.lengths, profile, keep, arrivals)
        elif not found:
            nearest = out_of_reach(now, service, demand.lengths, profile)
            unreachable.update({} if nearest is None else {model: nearest})
        runs = [combo for combo in running.values() if combo.model == model]
        candidates[model] = (*found, *_switched(runs, found, now, service, demand, profile))
    types: list[TypedDemand] = []
    if now.policy.spends_budget:
        idle = all(demand.req_per_s <= 0.0 for demand in planned.values())
        for model, demand in planned.items():
            demand = replace(demand, req_per_s=1.0) if idle else demand
            ids = [combo.id for combo in candidates[model]]
            ids += [i for i, combo in running.items() if combo.model == model]
            types += typed_demands(now, now.service(model), demand, ids, profile)
    running = {
        i: _worth_keeping(combo, candidates.get(combo.model, ()), options.late)
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
        unreachable=unreachable,
        types=tuple(types),
    )


def _switched(
    running: Iterable[Combo],
    candidates: tuple[Combo, ...],
    cluster: Cluster,
    service: Service,
    demand: Demand,
    profile: Profile,
) -> list[Combo]:
    """What combos of `running` could become by changing roles, beyond the `candidates`."""
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


def _some_attain(cluster: Cluster, service: Service, profile: Profile) -> bool:
    """Whether at least half of the requests of `service`, by its declared lengths, attain its SLO
    somewhere. Where only a tail of them cannot, the rest is better served than left alone."""
    enough = replace(service, percentile=min(service.percentile, _SOME))
    return bool(candidate_combos(cluster, enough, service.lengths, profile))


def _worth_keeping(combo: Combo, candidates: Iterable[Combo], late: bool) -> Combo:
    """A running combo that misses the SLO counts for nothing where others can meet it: the plan
    replaces it, and until it is gone it gets next to no requests. late: it counts where none can.
    """
    if combo.meets_slo or (late and not any(other.meets_slo for other in candidates)):
        return combo
    return replace(combo, req_per_s=_NEXT_TO_NOTHING)


def arrivals_of(demand: Demand, service: Service) -> Arrivals:
    """How the requests of `demand` arrive at the capacity that is to serve them."""
    return Arrivals(demand.req_per_s / service.utilization, demand.arrival_cv)


def with_prices(cluster: Cluster, prices_usd_per_h: Mapping[str, float]) -> Cluster:
    """`cluster` with these node prices; owned pools stay free at the margin."""
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
    """Nodes per pool that hold `combos`: power-of-two slices fill nodes without a rest."""
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
