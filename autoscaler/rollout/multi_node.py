"""Instances over several nodes: their ranks start, serve and end as one.

A drain goes to rank 0 first, which holds the requests. The other ranks follow when it has ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.combo import ComboMember
from autoscaler.rollout.serving_group import FleetView, Life, Placed, ServingGroup
from topics.fleet import InstanceState
from topics.instance_ranks import GangRank, GangStage


def joined(placed: Iterable[tuple[Placed, ComboMember]], cluster: Cluster) -> tuple[Placed, ...]:
    """`placed` with its multi-node instances: the n-th slice of every stage of a phase forms the
    n-th one."""
    found: list[Placed] = []
    parts: dict[tuple[str, int], list[tuple[Placed, ComboMember]]] = {}
    counted = Counter[tuple[str, int]]()
    for one, member in placed:
        if not member.stage:
            found.append(one)
            continue
        stage = one.phase.value, member.stage
        parts.setdefault((one.phase.value, counted[stage]), []).append((one, member))
        counted[stage] += 1
    for ranks in parts.values():
        ranks.sort(key=lambda rank: rank[1].stage)
        stages = tuple(
            GangStage(cluster.pool(one.pool).gpu.name, member.gpus, member.layers)
            for one, member in ranks
        )
        leader = ranks[0][0].instance
        found += [
            replace(one, gang=GangRank(leader, rank, stages)) for rank, (one, _) in enumerate(ranks)
        ]
    return tuple(found)


def waits(group: ServingGroup) -> bool:
    """Whether a rank does not know the address of its rank 0 yet; called for every group in every
    tick."""
    for one in group.placed:  # noqa: SIM110  twice as fast as any() of one or two
        if one.gang is not None and not one.gang.rendezvous:
            return True
    return False


def met(group: ServingGroup, fleet: FleetView) -> ServingGroup:
    """`group` with the addresses of its ranks 0, as their executors report them."""
    if not waits(group):
        return group
    seen = {name: one.gang for name, one in fleet.instances.items() if one.gang is not None}
    return _changed(
        group,
        lambda gang: (
            replace(gang, rendezvous=seen[gang.gang].rendezvous) if gang.gang in seen else gang
        ),
    )


def broken(group: ServingGroup, fleet: FleetView) -> ServingGroup:
    """`group` with its failed multi-node instances marked: the remaining ranks cannot finish
    anything."""
    failed = {
        one.gang.gang
        for one in group.placed
        if one.gang is not None
        and (seen := fleet.instances.get(one.instance)) is not None
        and seen.state is InstanceState.FAILED
    }
    return _changed(group, lambda g: replace(g, broken=True) if g.gang in failed else g)


def without(group: ServingGroup, gone: Callable[[Placed], bool]) -> ServingGroup:
    """A draining group without the ranks that are `gone`."""
    left = tuple(one for one in group.placed if one.gang is None or not gone(one))
    return group if len(left) == len(group.placed) else replace(group, placed=left)


def drains(group: ServingGroup, placed: Placed) -> bool:
    """Whether `placed` is to drain now: rank 0 before the others."""
    if group.life is not Life.DRAINING:
        return False
    gang = placed.gang
    if gang is None or gang.leads or gang.broken:
        return True
    return all(one.instance != gang.gang for one in group.placed)


def _changed(group: ServingGroup, change: Callable[[GangRank], GangRank]) -> ServingGroup:
    placed = tuple(
        one if one.gang is None else replace(one, gang=change(one.gang)) for one in group.placed
    )
    return group if placed == group.placed else replace(group, placed=placed)
