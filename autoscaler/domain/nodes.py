"""Names of nodes: how the n-th node of a pool is called, everywhere.

Owns the naming of static pools (all nodes known beforehand). A node provider that creates nodes
gives them names of its own.
"""

from __future__ import annotations

from functools import lru_cache

from autoscaler.domain.cluster import Pool


def node_id(pool: Pool, index: int) -> str:
    """The name of node `index` (0-based) of a static pool, e.g. "us-east.h100.owned.0"."""
    return f"{pool.region}.{pool.name}.{pool.market}.{index}"


@lru_cache(maxsize=4096)
def node_ids(pool: Pool) -> tuple[str, ...]:
    """All nodes that a static pool may have."""
    return tuple(node_id(pool, index) for index in range(pool.max_nodes))
