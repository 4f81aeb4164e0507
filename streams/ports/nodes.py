"""Port: where nodes come from. First implementation: static pools, whose nodes are always there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from autoscaler.domain.checks import InvalidValue
from autoscaler.domain.cluster import Cluster
from autoscaler.domain.nodes import node_ids


@dataclass(frozen=True, slots=True)
class Node:
    """A node that can be assigned to. pool: "region/name/market"."""

    node: str
    pool: str


class NodeProvider(Protocol):
    """Rents nodes and gives them back. Long work: awaited beside the ticks, never inside one."""

    async def nodes(self) -> tuple[Node, ...]:
        """All nodes there are now."""

    async def create(self, pool: str, count: int) -> tuple[Node, ...]:
        """Ask for `count` more nodes of `pool`; those that were got, which may be fewer."""

    async def delete(self, node: str) -> None:
        """Give `node` back; gone already is no error."""


class StaticPools:
    """Every declared node exists from the beginning, so none is created or deleted."""

    def __init__(self, cluster: Cluster) -> None:
        self._nodes = tuple(
            Node(name, pool.id) for pool in cluster.pools for name in node_ids(pool)
        )
        self._pools = tuple(pool.id for pool in cluster.pools)

    async def nodes(self) -> tuple[Node, ...]:
        """All declared nodes."""
        return self._nodes

    async def create(self, pool: str, count: int) -> tuple[Node, ...]:
        """None: a static pool cannot grow. InvalidValue: no such pool."""
        if pool not in self._pools:
            raise InvalidValue("pool", pool, " or ".join(self._pools))
        return ()

    async def delete(self, node: str) -> None:
        """Nothing: the node stays, idle."""
