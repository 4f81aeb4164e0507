"""The share of a canary, and the groups that are compared."""

from __future__ import annotations

import pytest

from autoscaler.rollout.canary_routes import canary_routes, canary_types
from autoscaler.rollout.serving_group import ServingGroup
from autoscaler.rollout.versions import Version
from topics.routing import Endpoint, RouteGroup, TypeRoute

NEW, OLD = Version("v2", "new"), Version("v1", "old")


def fleet(*combos: str) -> tuple[list[RouteGroup], list[ServingGroup]]:
    """Groups of these combos, which serve 10 requests/s each; the first one is the canary."""
    routes, groups = [], []
    for at, combo in enumerate(combos):
        name, version = f"m:{combo}:{at}", NEW if at == 0 else OLD
        routes.append(RouteGroup(name, 10.0, (Endpoint(name, f"h:{at + 1}"),)))
        groups.append(
            ServingGroup(name, "m", f"m:{combo}", version.engine, (), 0, version=version.digest)
        )
    return routes, groups


def share(routes: tuple[RouteGroup, ...]) -> float:
    return routes[0].weight / sum(route.weight for route in routes)


@pytest.mark.parametrize(
    ("declared", "needed", "expected"),
    [(0.1, 20.0, 0.1), (0.5, 20.0, 0.25), (0.1, 36.0, 1 / 6), (0.1, 100.0, 0.25)],
    ids=["declared", "its capacity", "the others are too small", "all are too small"],
)
def test_the_share_is_the_declared_one_between_need_and_capacity(
    declared: float, needed: float, expected: float
) -> None:
    routes, groups = fleet("a", "a", "a", "a")
    found = canary_routes(routes, groups, NEW, OLD, declared, needed)
    assert share(found) == pytest.approx(expected, rel=0.03)
    assert [route.weight for route in found[1:]] == [10.0] * 3


def test_equal_combos_are_compared_and_others_only_without_them() -> None:
    for combos, compared in ((("a", "b", "a"), ["new", "", "old"]), (("a", "b"), ["new", "old"])):
        routes, groups = fleet(*combos)
        found = canary_routes(routes, groups, NEW, OLD, 0.1, 10.0)
        assert [route.version for route in found] == compared


def test_nothing_is_compared_without_the_former_version() -> None:
    routes, groups = fleet("a")
    assert canary_routes(routes, groups, NEW, OLD, 0.1, 10.0) == tuple(routes)


def test_the_share_holds_for_each_type_of_requests() -> None:
    routes, groups = fleet("a", "a", "a")
    found = canary_routes(routes, groups, NEW, OLD, 0.1, 10.0)
    (kind,) = canary_types((TypeRoute("long", 1.0, 1.0, (0.2, 0.3, 0.5)),), routes, found)
    assert found[0].weight < 10.0
    assert kind.shares == pytest.approx((0.2 * found[0].weight / 10.0, 0.3, 0.5))
