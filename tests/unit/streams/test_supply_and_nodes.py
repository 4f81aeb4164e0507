"""Prices and nodes: what feeds say is believed within bounds, and static pools do not grow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster, Market, Pool
from autoscaler.performance import catalog
from streams.controller.supply import MOST_TIMES, obtainable, priced
from streams.ports.nodes import StaticPools
from topics.records import Availability, Price

GPU = catalog.gpu("L4")
RENTED = Pool("r", "rented", GPU, 4, 3, Market.SPOT, 2.0)
OWNED = Pool("r", "owned", GPU, 1, 2, Market.OWNED, 0.0)
CLUSTER = Cluster((RENTED, OWNED), ())


@given(st.floats(0.0, 100_000.0))
def test_a_price_is_believed_within_a_factor_of_the_declared_one(usd: float) -> None:
    """A feed that is wrong by a thousand changes nothing; the last declared price stays."""
    found = priced(CLUSTER, {RENTED.id: Price(RENTED.id, usd, 1)}).pool(RENTED.id)
    believed = 2.0 / MOST_TIMES <= usd <= 2.0 * MOST_TIMES
    assert found.price_usd_per_h == (usd if believed else 2.0)


def test_owned_pools_and_strangers_are_never_priced() -> None:
    """What is owned is paid; a pool that nobody declared is nobody's."""
    prices = {OWNED.id: Price(OWNED.id, 1.0, 1), "x/y/spot": Price("x/y/spot", 1.0, 1)}
    assert priced(CLUSTER, prices) is CLUSTER


def test_availability_counts_for_declared_pools_only() -> None:
    """Zero is what a feed may say; silence is not zero."""
    said = {RENTED.id: Availability(RENTED.id, 0, 1), "x/y/spot": Availability("x/y/spot", 9, 1)}
    assert obtainable(CLUSTER, said) == {RENTED.id: 0}
    assert obtainable(CLUSTER, {}) == {}


async def test_all_nodes_of_static_pools_are_there_from_the_beginning() -> None:
    """Nothing can be created or deleted; a foreign pool is refused by name."""
    provider = StaticPools(CLUSTER)
    nodes = await provider.nodes()
    assert len({node.node for node in nodes}) == 5
    assert [node.pool for node in nodes].count(RENTED.id) == 3
    assert await provider.create(RENTED.id, 2) == ()
    await provider.delete(nodes[0].node)
    assert await provider.nodes() == nodes
    with pytest.raises(InvalidValue, match="nowhere"):
        await provider.create("nowhere", 1)
