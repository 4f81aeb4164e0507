"""Routes of a new cluster, whose leaders and generations begin again."""

from __future__ import annotations

import pytest

from executors.gateway.gateway_metrics import GatewayMetrics
from executors.gateway.route_table import RouteTable
from topics.records import Endpoint, RouteGroup, Routes


def routes(generation: int, token: int, address: str) -> Routes:
    group = RouteGroup("g", 1.0, (Endpoint("i", address),))
    return Routes("chat", generation, token, 0, 2000.0, 60.0, (group,))


def addresses(table: RouteTable) -> list[str]:
    return [end.address for router in table.routers.values() for end in router.endpoints()]


@pytest.fixture
def table() -> RouteTable:
    made = RouteTable(GatewayMetrics(), None, 5.0)
    assert not made.known
    made.set_highest_token(7)
    made.offer(routes(30, 7, "old:1"))
    assert made.known
    return made


@pytest.mark.parametrize("token_first", [False, True])
def test_routes_of_a_new_cluster_replace_the_former_ones_once_all_are_read(
    table: RouteTable, token_first: bool
) -> None:
    """The leadership topic may be read before or after."""
    if token_first:
        table.set_highest_token(2)
    table.begin_cluster()
    if not token_first:
        table.set_highest_token(2)
    for generation in range(1, 20):
        table.offer(routes(generation, 2, f"new:{generation}"))
        assert addresses(table) == ["old:1"]
    table.end_settling()
    assert addresses(table) == ["new:19"]
    table.offer(routes(20, 2, "new:20"))
    table.offer(routes(31, 7, "old:1"))  # no claim of the new cluster has this token
    assert addresses(table) == ["new:20"]


def test_former_routes_stay_while_a_new_cluster_has_none(table: RouteTable) -> None:
    table.begin_cluster()
    table.set_highest_token(0)
    table.end_settling()
    assert addresses(table) == ["old:1"]
    assert table.routers["chat"].routes is not None
    assert table.routers["chat"].routes.generation == 0  # the gateway confirms no routes of it


def test_a_gateway_without_routes_is_ready_once_it_has_read_that_there_are_none() -> None:
    table = RouteTable(GatewayMetrics(), None, 5.0)
    table.begin_cluster()
    assert not table.known
    table.end_settling()
    assert table.known
