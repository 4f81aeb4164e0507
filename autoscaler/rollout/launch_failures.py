"""Groups that fail to start, and nodes that are silent or have a reclaim notice.

A broken group retires and its node backs off. A lost group no longer counts. It is dropped after a
long silence of its node; a multi-node group retires when its other ranks fail. A group on a node
with a reclaim notice retires at once, serves until it must leave, and stays if the notice is
withdrawn. The planner replaces all these groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autoscaler.domain.reason import Reason
from autoscaler.rollout.backoff import Backoff, failed
from autoscaler.rollout.fleet_snapshot import FleetSnapshot
from autoscaler.rollout.multi_node import broken
from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.waves import reactivate, retire


@dataclass(frozen=True, slots=True)
class Failure:
    """A launch that failed or timed out. wait_s: back-off of its node."""

    group: ServingGroup
    node: str
    pool: str
    why: Reason
    wait_s: float


@dataclass(frozen=True, slots=True)
class Faults:
    """The detected faults.

    groups: the groups after the faults were applied. lost: wanted groups whose nodes are silent or
    reclaimed.
    """

    groups: tuple[ServingGroup, ...]
    backoff: Mapping[str, Backoff]
    failures: tuple[Failure, ...]
    lost: tuple[ServingGroup, ...]


def detect_faults(
    groups: Iterable[ServingGroup],
    sight: FleetSnapshot,
    backoff: Mapping[str, Backoff],
    theirs: Collection[str],
    now_ms: int,
    is_suspect: Callable[[ServingGroup], bool] = lambda _: False,
) -> Faults:
    """Check every group once. theirs: models whose groups Shoal may not change. is_suspect: whether
    the version of a group never served, so that its failure says nothing about its node."""
    kept: list[ServingGroup] = []
    failures: list[Failure] = []
    lost: list[ServingGroup] = []
    marks = dict(backoff)
    for group in groups:
        view = sight.views[group.name]
        ours = group.model not in theirs
        reclaimed = bool(sight.reclaimed) and sight.reclaim_ms(group) > 0
        if ours and view.lost and any(placed.node in sight.gone for placed in group.placed):
            continue
        if view.lost and not (
            view.broken is not None and any(placed.gang for placed in group.placed)
        ):
            lost.append(group)
        elif reclaimed and group.life is Life.ACTIVE and ours:
            lost.append(group)
            # The group must leave because its node will be reclaimed, although its model needs it.
            left = retire(group, now_ms, yields=True)
            group = replace(left, exit=replace(left.exit, noticed=True))
        elif group.exit.noticed and group.life is Life.RETIRING and not reclaimed:
            group = reactivate(group, now_ms)
        elif view.broken is not None and group.counts and ours and is_suspect(group):
            group = retire(replace(broken(group, sight.fleet), failed_ms=now_ms), now_ms)
        elif view.broken is not None and group.counts and ours:
            node, pool = view.broken_node, view.broken_pool
            status = sight.fleet.statuses.get(node)
            basis = status.launch_basis if status else ""
            mark = failed(marks, node, pool, now_ms, view.pool_full, basis)
            marks[node] = mark
            wait_s = (mark.until_ms - now_ms) / 1000
            failures.append(Failure(group, node, pool, view.broken, wait_s))
            group = retire(replace(broken(group, sight.fleet), failed_ms=now_ms), now_ms)
        kept.append(group)
    return Faults(tuple(kept), marks, tuple(failures), tuple(lost))
