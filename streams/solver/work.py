"""What the solver process does with a question. Pure: the cluster and the question come in.

Owns the translation between what `decide` asks for and what planning offers.
"""

from __future__ import annotations

from collections.abc import Iterable

from autoscaler.controller_state import Refinement
from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import Combo
from autoscaler.domain.workload import Bucket
from autoscaler.effects import RefinementRequested, ScaleOutTablesRequested
from autoscaler.performance.profile import Profile, default_profile
from autoscaler.planning.combo_ilp import CoverStatus, total_slices
from autoscaler.planning.combos import combo_named
from autoscaler.planning.joint import refine
from autoscaler.planning.room import PoolRoom, occupied, pool_room
from autoscaler.planning.tables import build_tables
from streams.solver.wire import Answer, Question


def solve(question: Question, cluster: Cluster) -> Answer:
    """The answer to `question`. Raises what planning raises."""
    profile = default_profile()
    if isinstance(question, ScaleOutTablesRequested):
        return tuple(build_tables(cluster, dict(question.buckets), None, profile).values())
    return _refine(question, cluster, profile)


def _refine(question: RefinementRequested, cluster: Cluster, profile: Profile) -> Refinement:
    scope = set(question.scope)
    buckets = {demand.model: demand.bucket for demand in question.demands}
    combos = _running(question, cluster, buckets, profile)
    plan = refine(
        cluster,
        {demand.model: demand for demand in question.demands if demand.model in scope},
        {combo.id: count for combo, count in combos},
        _free(cluster, combos, dict(question.obtainable), frozenset(question.scarce)),
        profile,
    )
    missing = tuple(sorted((m, r) for m, r in plan.shortfall_req_per_s.items() if r > 0))
    if plan.status is CoverStatus.FAILED:
        return Refinement(question.request, timed_out=True, shortfall_req_per_s=missing)
    targets = tuple(
        (model, combo_id, count)
        for model in sorted(plan.targets)
        for combo_id, count in plan.targets[model]
    )
    return Refinement(question.request, targets, "joint", shortfall_req_per_s=missing)


def _running(
    question: RefinementRequested, cluster: Cluster, buckets: dict[str, Bucket], profile: Profile
) -> list[tuple[Combo, int]]:
    """What runs, as combos; one that the declared pools no longer allow is left out."""
    found = []
    for model, combo_id, count in question.running:
        try:
            service = cluster.service(model)
            found.append((combo_named(combo_id, cluster, service, buckets[model], profile), count))
        except (InvalidValue, KeyError):
            continue
    return found


def _free(
    cluster: Cluster,
    running: Iterable[tuple[Combo, int]],
    obtainable: dict[str, int],
    scarce: frozenset[str],
) -> dict[str, PoolRoom]:
    """Room beside what runs, packed as tightly as it can be; pools that are scarce have none."""
    pairs = list(running)
    under = total_slices([combo for combo, _ in pairs], [count for _, count in pairs])
    free = {}
    for pool in cluster.pools:
        if pool.id in scarce:
            continue
        room = pool_room(pool)
        if pool.id in under:
            try:
                room = occupied(room, under[pool.id])
            except InvalidValue:
                continue  # more runs than is declared: nothing is free
        new = min(room.new_nodes, obtainable.get(pool.id, room.new_nodes))
        free[pool.id] = PoolRoom(room.per_node, room.blocks, new, room.node_usd_per_h)
    return free
