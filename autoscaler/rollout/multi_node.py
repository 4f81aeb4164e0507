"""Instances that span several nodes: their ranks start, serve and end together.

Rank 0 holds the requests, so it drains first, and the other ranks drain when rank 0 has ended.
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
    """`placed`, with slices joined to multi-node instances: the n-th slices of all stages of a
    phase form the n-th instance."""
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
    """Whether a rank does not yet know the address of its rank 0. Runs for every group in every
    tick."""
    for one in group.placed:  # noqa: SIM110  twice as fast as any() of one or two
        if one.gang is not None and not one.gang.rendezvous:
            return True
    return False


def met(group: ServingGroup, fleet: FleetView) -> ServingGroup:
    """`group` with the addresses of rank 0 of its multi-node instances, as executors report
    them."""
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
    """`group` with its failed multi-node instances marked: their remaining ranks cannot finish any
    request."""
    failed = {
        one.gang.gang
        for one in group.placed
        if one.gang is not None
        and (seen := fleet.instances.get(one.instance)) is not None
        and seen.state is InstanceState.FAILED
    }
    return _changed(group, lambda g: replace(g, broken=True) if g.gang in failed else g)


def without(group: ServingGroup, gone: Callable[[Placed], bool]) -> ServingGroup:
    """`group`, which drains, without the ranks for which `gone` is true."""
    left = tuple(one for one in group.placed if one.gang is None or not gone(one))
    return group if len(left) == len(group.placed) else replace(group, placed=left)


def drains(group: ServingGroup, placed: Placed) -> bool:
    """Whether `placed` must drain now. In a multi-node instance, rank 0 drains before the other
    ranks."""
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
