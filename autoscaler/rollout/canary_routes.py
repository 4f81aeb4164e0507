"""Routes while the first instance of a new version is compared with the former version."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from autoscaler.rollout.serving_group import Life, ServingGroup
from autoscaler.rollout.versions import Version, runs
from topics.routing import RouteGroup, TypeRoute

FORMER = "former"
"""The name of a former version of unknown digest in counts."""


def compared_groups(
    groups: Iterable[ServingGroup], new: Version, old: Version
) -> tuple[list[ServingGroup], list[ServingGroup]]:
    """Groups of `groups`, which serve, of both versions. If some of the former version have the
    combo of a new one, only these are compared."""
    serving = [group for group in groups if group.life in (Life.ACTIVE, Life.RETIRING)]
    first = [group for group in serving if runs(group, new)]
    others = [group for group in serving if runs(group, old)]
    combos = {group.combo_id for group in first}
    alike = [group for group in others if group.combo_id in combos]
    return first, alike or others


def canary_routes(
    routes: Sequence[RouteGroup],
    groups: Iterable[ServingGroup],
    new: Version,
    old: Version,
    share: float,
    needed_req_per_s: float,
) -> tuple[RouteGroup, ...]:
    """`routes` with the versions of compared groups, and the weight of the new version at `share`
    of the requests, unless its capacity is a smaller share. It is larger as far as the others
    cannot serve `needed_req_per_s`, the raw capacity that the model needs."""
    own = {group.name: group for group in groups}
    first, others = compared_groups(
        [own[route.group] for route in routes if route.group in own], new, old
    )
    if not first or not others:
        return tuple(routes)
    names = {group.name: new.digest for group in first}
    names |= {group.name: old.digest or FORMER for group in others}
    canaries = {group.name for group in first}
    mine = sum(route.weight for route in routes if route.group in canaries)
    rest = sum(route.weight for route in routes) - mine
    overflow = 1.0 - rest / needed_req_per_s if needed_req_per_s > 0.0 else 0.0
    part = max(share, overflow)
    factor = 1.0
    if 0.0 < part < mine / (mine + rest):
        factor = part / (1.0 - part) * rest / mine
    return tuple(
        replace(
            route,
            version=names.get(route.group, ""),
            weight=float(f"{route.weight * factor:.2g}")
            if route.group in canaries and factor < 1.0
            else route.weight,
        )
        for route in routes
    )


def canary_types(
    types: tuple[TypeRoute, ...], before: Sequence[RouteGroup], after: Sequence[RouteGroup]
) -> tuple[TypeRoute, ...]:
    """`types` with each group's shares in the proportion in which its weight changed."""
    factors = [
        new.weight / old.weight if old.weight > 0.0 else 1.0
        for old, new in zip(before, after, strict=True)
    ]
    if all(factor == 1.0 for factor in factors):
        return types
    return tuple(
        replace(
            kind,
            shares=tuple(
                float(f"{share * factor:.5g}")
                for share, factor in zip(kind.shares, factors, strict=True)
            ),
        )
        for kind in types
    )
