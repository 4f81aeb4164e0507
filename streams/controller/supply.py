"""What feeds say of pools, taken into the declared cluster: prices, and nodes that can be had.

Owns the check that a price may be believed. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Market, Pool
from topics.records import Availability, Price

MOST_TIMES = 20.0
"""A price that is this many times the declared one, or that small a part of it, is not believed."""


def priced(cluster: Cluster, prices: Mapping[str, Price]) -> Cluster:
    """`cluster` with the latest believable price of each pool; owned pools stay at 0."""
    pools = []
    for pool in cluster.pools:
        price = prices.get(pool.id)
        if price is not None and pool.market is not Market.OWNED and believable(pool, price):
            pool = replace(pool, price_usd_per_h=price.usd_per_node_h)
        pools.append(pool)
    return cluster if tuple(pools) == cluster.pools else replace(cluster, pools=tuple(pools))


def believable(pool: Pool, price: Price) -> bool:
    """Whether `price` is within a factor of MOST_TIMES of the pool's declared one."""
    declared = pool.price_usd_per_h
    return declared / MOST_TIMES <= price.usd_per_node_h <= declared * MOST_TIMES


def obtainable(cluster: Cluster, availability: Mapping[str, Availability]) -> dict[str, int]:
    """Further nodes that can be had, for declared pools that a feed spoke of."""
    declared = {pool.id for pool in cluster.pools}
    return {pool: record.nodes for pool, record in availability.items() if pool in declared}
