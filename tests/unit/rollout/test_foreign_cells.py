"""Groups in assignments that a new controller reads and that only look like cells of components."""

from __future__ import annotations

import pytest

from autoscaler.domain.workload import Phase
from autoscaler.rollout.component_routes import cell_route
from autoscaler.rollout.serving_group import GroupView, Placed, ServingGroup
from topics.routing import Endpoint, Hop, RouteGroup, RoutePath, Stage

STAGE = Stage("llm", (Endpoint("a+llm", "h:1"),))
KNOWN = RouteGroup(
    "g:1", 2.0, stages=(STAGE,), paths=(RoutePath("text", 2.0, (Hop("llm", ("llm",)),)),)
)


def placed(instance: str, pool: str = "us/l4/owned") -> Placed:
    return Placed(instance, Phase.AGGREGATED, "n", pool, (0,))


@pytest.mark.parametrize(
    "instances",
    [
        (placed("a+x"), placed("b")),
        (placed("a++x"),),
        (placed("a+" + "x" * 190, "p"), placed("b+" + "x" * 190, "q" * 150)),
        (placed("a+other"),),
    ],
)
def test_a_group_that_is_no_cell_gets_no_requests(instances: tuple[Placed, ...]) -> None:
    """The group has the name of a cell, but its instances form no path for a gateway."""
    group = ServingGroup("g:1", "m", "g", "default", instances, 0)
    view = GroupView(tuple((one, "h:1") for one in instances), True, "", False)
    assert cell_route(group, view, None, KNOWN) is None


def test_undeclared_pools_with_unusual_names_are_distinguished() -> None:
    """The name of an undeclared pool need not have three parts."""
    both = (placed("a+llm", "p"), placed("b+llm", "q/r"))
    group = ServingGroup("g:1", "m", "g", "default", both, 0)
    view = GroupView(tuple((one, "h:1") for one in both), True, "", False)
    stages = tuple(Stage(f"llm@{at}", (Endpoint("i", "h:1"),)) for at in ("p", "r"))
    paths = (RoutePath("text", 2.0, (Hop("llm@p", ("llm",)),)),)
    found = cell_route(group, view, None, RouteGroup("g:1", 2.0, stages=stages, paths=paths))
    assert found is not None and [stage.name for stage in found.stages] == ["llm@p", "llm@r"]


def test_published_paths_stay_until_a_cell_has_its_rate() -> None:
    """After a restart the cell has no rate yet."""
    one = placed("a+llm")
    group = ServingGroup("g:1", "m", "g", "default", (one,), 0)
    found = cell_route(group, GroupView(((one, "h:1"),), True, "", False), None, KNOWN)
    assert found == KNOWN
