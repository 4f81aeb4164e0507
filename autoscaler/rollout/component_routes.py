"""Convert cells to routes for gateways: stages with their instances, and the paths through them."""

from __future__ import annotations

from collections import Counter

from autoscaler.domain.combo import Combo
from autoscaler.rollout.serving_group import GroupView, Placed, ServingGroup, ready_req_per_s
from topics.checks import is_name
from topics.routing import Endpoint, Hop, RouteGroup, RoutePath, Stage


def cell_route(
    group: ServingGroup, view: GroupView, combo: Combo | None, published: RouteGroup | None
) -> RouteGroup | None:
    """The route of the ready part of the cell `group`; None if a deployment has no ready instance.

    The cell serves only when every deployment is ready, because requests on a path with a missing
    hop would fail, and the other paths are not planned for additional requests. A cell without an
    evaluation (after a restart) keeps the `published` paths. A group that was restored from
    assignments may not be a cell, despite its name; such a group gets no requests.
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
            # Five digits: smaller changes of a rate do not matter to gateways.
            float(f"{path.req_per_s * share:.5g}"),
            tuple(Hop(names[hop.deployment, hop.pool], hop.runs) for hop in path.hops),
        )
        for path in combo.paths
    )
    return RouteGroup(group.name, float(f"{weight:.5g}"), stages=stages, paths=paths)


def stage_names(placed: tuple[Placed, ...]) -> dict[tuple[str, str], str]:
    """Stage name by (deployment, pool): the deployment alone or, if it runs on several pools, which
    may differ in speed, the deployment with its pool."""
    pools = Counter(name for name, _ in {(one.deployment, one.pool) for one in placed})
    return {
        (one.deployment, one.pool): one.deployment
        if pools[one.deployment] == 1
        else f"{one.deployment}@{'-'.join(one.pool.split('/')[1:]) or one.pool}"
        for one in placed
    }
