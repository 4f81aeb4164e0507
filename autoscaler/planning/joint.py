"""The global refinement over all models at once: eq. 16 with shared GPUs and what runs already.

Owns the joint problem over combos: running ones keep their price, new ones cost (1 + K) times it.
Knows nothing of when to refine, or of the waves that lead to its targets.
Source: Cauchy sec. 3.5.2 (periodic refinement), Coral sec. 4.3 (initialization penalty, as keep
and start columns).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Demand
from autoscaler.performance.profile import Profile
from autoscaler.planning.combo_ilp import (
    Column,
    CoverProblem,
    CoverStatus,
    solve_cover,
    total_slices,
)
from autoscaler.planning.combos import candidate_combos, combo_named, parse_combo_id
from autoscaler.planning.room import NO_BLOCKS, PoolRoom, Room
from autoscaler.planning.tables import eq16_weight


@dataclass(frozen=True, slots=True)
class JointPlan:
    """Targets of all models. targets: model -> ((combo id, count), ...), counts above 0.

    usd_per_h: price of the GPUs of the targets, kept_usd_per_h of the running fleet before. Both
    without penalties. shortfall_req_per_s: demand in requests/s that no plan could hold.
    combos: every combo named in targets.
    """

    status: CoverStatus
    targets: Mapping[str, tuple[tuple[str, int], ...]]
    usd_per_h: float
    running_usd_per_h: float
    shortfall_req_per_s: Mapping[str, float]
    combos: Mapping[str, Combo]


def refine(
    cluster: Cluster,
    demands: Mapping[str, Demand],
    running: Mapping[str, int],
    free: Room,
    profile: Profile,
    time_limit_s: float = 10.0,
) -> JointPlan:
    """The cheapest fleet for all `demands` together, starting from `running` (combo id -> count).

    demands: observed arrivals per model; each is divided by its service's utilization here.
    free: room beside what runs. Models without a demand keep what they run.
    """
    combos, columns = _columns(cluster, demands, running, profile)
    held = {combo_id: n for combo_id, n in running.items() if combo_id in combos}
    needed = {
        model: demand.req_per_s / cluster.service(model).utilization
        for model, demand in demands.items()
    }
    services = [cluster.service(model) for model in demands]
    problem = CoverProblem(
        columns=tuple(columns),
        demand_req_per_s=needed,
        room=_with_running(free, combos, held, cluster),
        spot_limit_req_per_s={s.model: s.spot_share * needed[s.model] for s in services},
        floors={s.model: s.min_instances for s in services if s.min_instances},
        ceilings={s.model: s.max_instances for s in services if s.max_instances},
        relative_gap=0.005,
        time_limit_s=time_limit_s,
    )
    cover = solve_cover(problem)
    totals: dict[str, int] = {}
    for column, count in zip(columns, cover.counts, strict=True):
        totals[column.combo.id] = totals.get(column.combo.id, 0) + count
    targets = {
        model: tuple((i, n) for i, n in totals.items() if n and combos[i].model == model)
        for model in demands
    }
    return JointPlan(
        status=cover.status,
        targets=targets,
        usd_per_h=sum(combos[i].usd_per_h * n for i, n in totals.items()),
        running_usd_per_h=sum(combos[i].usd_per_h * n for i, n in held.items()),
        shortfall_req_per_s={
            model: missing * cluster.service(model).utilization
            for model, missing in cover.shortfall_req_per_s.items()
        },
        combos={i: combos[i] for i, n in totals.items() if n},
    )


def _columns(
    cluster: Cluster, demands: Mapping[str, Demand], running: Mapping[str, int], profile: Profile
) -> tuple[dict[str, Combo], list[Column]]:
    """Keep columns (at most what runs, at its weight), start columns at (1 + K) times theirs."""
    combos: dict[str, Combo] = {}
    columns = []
    penalty = 1.0 + cluster.policy.k_start
    for model, demand in demands.items():
        service = cluster.service(model)
        for combo in candidate_combos(cluster, service, demand.bucket, profile):
            combos[combo.id] = combo
            columns.append(Column(combo, penalty * eq16_weight(combo, cluster, demand.bucket)))
    for combo_id, count in sorted(running.items()):
        model, _ = parse_combo_id(combo_id)
        if model not in demands or count <= 0:
            continue
        demand = demands[model]
        if combo_id not in combos:
            service = cluster.service(model)
            combos[combo_id] = combo_named(combo_id, cluster, service, demand.bucket, profile)
        weight = eq16_weight(combos[combo_id], cluster, demand.bucket)
        columns.append(Column(combos[combo_id], weight, at_most=count))
    return combos, columns


def _with_running(
    free: Room, combos: Mapping[str, Combo], held: Mapping[str, int], cluster: Cluster
) -> dict[str, PoolRoom]:
    """Free room and the blocks under what runs: those are kept, or given to another combo."""
    under = total_slices([combos[i] for i in held], list(held.values()))
    room = dict(free)
    for pool_id, blocks in under.items():
        pool = cluster.pool(pool_id)
        old = room.get(pool_id, PoolRoom(pool.per_node, NO_BLOCKS, 0, pool.price_usd_per_h))
        room[pool_id] = PoolRoom(
            per_node=old.per_node,
            blocks=(
                old.blocks[0] + blocks[0],
                old.blocks[1] + blocks[1],
                old.blocks[2] + blocks[2],
                old.blocks[3] + blocks[3],
            ),
            new_nodes=old.new_nodes,
            node_usd_per_h=old.node_usd_per_h,
        )
    return room
