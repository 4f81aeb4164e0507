"""The feeds of prices and of available nodes in a simulation, and the node limits that they
report."""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.cluster import Market, Pool
from autoscaler.domain.node_names import node_ids
from autoscaler.serving.billing import Bill
from topics.supply import Availability, Price


class SupplyFeeds:
    """Latest records per pool. bill: the bill, from which the rented nodes are counted. Times are
    domain ms since the epoch."""

    def __init__(self, bill: Bill) -> None:
        self.availability: dict[str, Availability] = {}
        self.prices: dict[str, Price] = {}
        self._bill = bill
        self._limits: dict[str, int] = {}

    def is_exhausted(self, pool: str) -> bool:
        """Whether no further node of `pool` can be rented."""
        limit = self._limits.get(pool)
        return limit is not None and self._bill.billed(pool) >= limit

    def in_use(self, pool: Pool) -> list[str]:
        """The nodes of `pool` that may be lost, in this order: rented ones, newest first."""
        return list(node_ids(pool) if pool.market is Market.OWNED else self._bill.newest(pool.id))

    def set_price(self, pool: str, usd: float, now_ms: int) -> None:
        """Publish a price in USD per node-hour."""
        self.prices[pool] = Price(pool, usd, now_ms)

    def set_free(self, pool: str, nodes: int, now_ms: int) -> None:
        """Publish that `nodes` more nodes can be rented."""
        self._limits[pool] = self._bill.billed(pool) + nodes
        self.availability[pool] = Availability(pool, nodes, now_ms)

    def set_limit(self, pool: str, nodes: int, now_ms: int) -> None:
        """Publish that at most `nodes` nodes can be rented, including the rented ones."""
        self._limits[pool] = nodes
        self._offer(pool, now_ms)

    def refresh(self, now_ms: int) -> None:
        """Publish all known prices and offers again, so that feeds do not count as silent."""
        for pool, price in self.prices.items():
            self.prices[pool] = replace(price, observed_ms=now_ms)
        for pool in self.availability:
            self._offer(pool, now_ms)

    def _offer(self, pool: str, now_ms: int) -> None:
        left = max(0, self._limits[pool] - self._bill.billed(pool))
        self.availability[pool] = Availability(pool, left, now_ms)
