"""Cells on their way to gateways: stages with their instances, and the paths through them.

Owns the projection of one placed cell onto a group of routes. Decides nothing.
"""

from __future__ import annotations

from collections import Counter

from autoscaler.domain.combo import Combo
from autoscaler.rollout.serving_group import GroupView, Placed, ServingGroup, ready_req_per_s
from topics.checks import is_name
from topics.routing import Endpoint, Hop, RouteGroup, RoutePath, Stage


def cell_route(
    group: ServingGroup, view: GroupView, combo: Combo | None, published: RouteGroup | None
) -> RouteGroup | None:
    """The cell `group` as far as it is ready; None while some deployment has no instance ready.

    A path of which a hop is not ready would be chosen and broken off, and the other paths were not
    planned for its share, so the whole cell waits. A cell that nobody has valued yet (after a
    restart) keeps the paths that are `published`. A group that was taken over from assignments may
    be no such cell, whatever it is called: then no request goes there.
    """
    names = stage_names(group.placed)
    if not all(is_name(name) for name in names.values()):
        return None
    ends: dict[str, list[Endpoint]] = {}
    for placed, address in view.ready:
        name = names[placed.deployment, placed.pool]
        ends.setdefault(name, []).append(Endpoint(placed.instance, address))
    if set(names.values()) != set(ends):
        return None
    stages = tuple(Stage(name, tuple(ends[name])) for name in sorted(ends))
    if combo is None or not combo.paths:
        if published is None or not published.paths:
            return None
        if not {hop.stage for path in published.paths for hop in path.hops} <= set(ends):
            return None
        return RouteGroup(group.name, published.weight, stages=stages, paths=published.paths)
    if not {(hop.deployment, hop.pool) for path in combo.paths for hop in path.hops} <= set(names):
        return None
    weight = ready_req_per_s(combo, view)
    share = weight / combo.req_per_s
    paths = tuple(
        RoutePath(
            path.type,
            # Five digits: a rate that moves in the ninth is no news to gateways.
            float(f"{path.req_per_s * share:.5g}"),
            tuple(Hop(names[hop.deployment, hop.pool], hop.runs) for hop in path.hops),
        )
        for path in combo.paths
    )
    return RouteGroup(group.name, float(f"{weight:.5g}"), stages=stages, paths=paths)


def stage_names(placed: tuple[Placed, ...]) -> dict[tuple[str, str], str]:
    """(deployment, pool) -> the stage's name: the deployment, with its pool where it runs on
    several, because it is faster on one of them."""
    pools = Counter(name for name, _ in {(one.deployment, one.pool) for one in placed})
    return {
        (one.deployment, one.pool): one.deployment
        if pools[one.deployment] == 1
        else f"{one.deployment}@{'-'.join(one.pool.split('/')[1:]) or one.pool}"
        for one in placed
    }
