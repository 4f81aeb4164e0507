"""The bill of a fleet: spans of node time, each at one price, computed from node statuses. A whole
node is billed from the launch of its first instance until a status shows the node without
instances, including idle and starting time. A price change ends the span and begins another one. A
node that sends no more statuses stays on the bill, because no report shows that it was released.
The controller's cost per hour leaves lost nodes out (`FleetSnapshot.unpaid`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from topics.fleet import Status


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """`node` was billed at `usd_per_h` from `from_s` to `to_s`, seconds from the bill's origin."""

    node: str
    pool: str
    usd_per_h: float
    from_s: float
    to_s: float

    @property
    def hours(self) -> float:
        """Length of the span in hours."""
        return (self.to_s - self.from_s) / 3600.0

    @property
    def usd(self) -> float:
        """Cost of the span in USD."""
        return self.usd_per_h * (self.to_s - self.from_s) / 3600.0


class Bill:
    """Converts statuses and prices to spans; call `close` once at the end. usd_per_h: price of a
    node, by pool."""

    def __init__(self, usd_per_h: Mapping[str, float], origin_ms: int) -> None:
        self._usd_per_h = dict(usd_per_h)
        self._origin_ms = origin_ms
        self._open: dict[str, tuple[str, float]] = {}
        self._heard_ms: dict[str, int] = {}
        self.spans: list[NodeSpan] = []

    def billed(self, pool: str) -> int:
        """Nodes of `pool` that are billed now."""
        return sum(where == pool for where, _ in self._open.values())

    def newest(self, pool: str) -> list[str]:
        """The nodes of `pool` that are billed now, latest launch first."""
        mine = [(from_s, node) for node, (where, from_s) in self._open.items() if where == pool]
        return [node for _, node in sorted(mine, reverse=True)]

    def is_billed(self, node: str) -> bool:
        """Whether `node` is billed now."""
        return node in self._open

    def record(self, status: Status) -> None:
        """Add a node's status. A status that is older than the last one of its node is ignored."""
        if status.at_ms < self._heard_ms.get(status.node, status.at_ms):
            return
        self._heard_ms[status.node] = status.at_ms
        if not status.instances:
            self.end_node(status.node, self._s(status.at_ms))
            return
        launched = [item.launched_ms for item in status.instances if item.launched_ms]
        if launched and status.node not in self._open:
            self._open[status.node] = status.pool, self._s(min(launched))

    def reprice(self, pool: str, usd_per_h: float, at_s: float) -> None:
        """Set the price of a node of `pool` from `at_s` on."""
        running = [node for node, (where, _) in self._open.items() if where == pool]
        for node in running:
            self.end_node(node, at_s)
        self._usd_per_h[pool] = usd_per_h
        for node in running:
            self._open[node] = pool, at_s

    def end_node(self, node: str, at_s: float) -> None:
        """End the span of `node` at `at_s`, because the node is released."""
        if node in self._open:
            span = self._span(node, at_s)
            del self._open[node]
            if span.from_s < at_s:
                self.spans.append(span)

    def close(self, at_s: float) -> None:
        """End every span at `at_s`."""
        self.spans = self.until(at_s)
        self._open.clear()

    def until(self, at_s: float) -> list[NodeSpan]:
        """All spans up to `at_s`, including open ones."""
        still = [self._span(node, at_s) for node in self._open]
        return [
            replace(span, to_s=min(span.to_s, at_s))
            for span in (*self.spans, *still)
            if span.from_s < at_s
        ]

    def _span(self, node: str, to_s: float) -> NodeSpan:
        pool, from_s = self._open[node]
        return NodeSpan(node, pool, self._usd_per_h[pool], from_s, to_s)

    def _s(self, epoch_ms: int) -> float:
        return (epoch_ms - self._origin_ms) / 1000.0
