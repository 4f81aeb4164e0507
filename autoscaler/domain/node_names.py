"""Node names of static pools, in which the n-th node has a fixed name. (Nodes that a node provider
creates have other names.)
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from autoscaler.domain.cluster import Market, Pool


def node_ids(pool: Pool) -> tuple[str, ...]:
    """Names of all nodes that a static pool may have, e.g. "us-east.h100.owned.0"."""
    return _names(pool.region, pool.name, pool.market, pool.max_nodes)


class NodeNames:
    """Set of the names of all nodes that `pools` may have, without listing them."""

    def __init__(self, pools: Iterable[Pool]) -> None:
        self._most = {_stem(pool.region, pool.name, pool.market): pool.max_nodes for pool in pools}

    def __contains__(self, node: str) -> bool:
        stem, _, index = node.rpartition(".")
        most = self._most.get(stem)
        if most is None or len(index) > 7 or not (index.isascii() and index.isdigit()):
            return False
        return int(index) < most and (index == "0" or index[0] != "0")


@lru_cache(maxsize=4096)  # cached by a key without the price, which changes often
def _names(region: str, pool: str, market: Market, count: int) -> tuple[str, ...]:
    return tuple(f"{_stem(region, pool, market)}.{index}" for index in range(count))


def _stem(region: str, pool: str, market: Market) -> str:
    return f"{region}.{pool}.{market}"
