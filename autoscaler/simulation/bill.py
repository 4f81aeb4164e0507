"""What a simulated fleet costs: spans of node time at one price each.

Owns the spans, by the rule of `serving.billing`: a node is billed whole from the launch of its
first instance until a status shows it without any. A change of price ends a span and begins one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from topics.fleet import Status


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """`node` was billed at `usd_per_h` from `from_s` to `to_s`, seconds of the simulation."""

    node: str
    pool: str
    usd_per_h: float
    from_s: float
    to_s: float

    @property
    def usd(self) -> float:
        """What it cost."""
        return self.usd_per_h * (self.to_s - self.from_s) / 3600.0


class Bill:
    """Fold in statuses and prices as they come; `close` once at the end."""

    def __init__(self, usd_per_h: Mapping[str, float], origin_ms: int) -> None:
        self._usd_per_h = dict(usd_per_h)
        self._origin_ms = origin_ms
        self._open: dict[str, tuple[str, float]] = {}
        self.spans: list[NodeSpan] = []

    def billed(self, pool: str) -> int:
        """Nodes of `pool` that are billed now."""
        return sum(where == pool for where, _ in self._open.values())

    def newest(self, pool: str) -> list[str]:
        """The nodes of `pool` that are billed now, the latest launched first."""
        mine = [(from_s, node) for node, (where, from_s) in self._open.items() if where == pool]
        return [node for _, node in sorted(mine, reverse=True)]

    def is_billed(self, node: str) -> bool:
        """Whether `node` is billed now."""
        return node in self._open

    def record(self, status: Status) -> None:
        """Take a node's status in."""
        if not status.instances:
            self._end(status.node, self._s(status.at_ms))
            return
        launched = [item.launched_ms for item in status.instances if item.launched_ms]
        if launched and status.node not in self._open:
            self._open[status.node] = status.pool, self._s(min(launched))

    def reprice(self, pool: str, usd_per_h: float, at_s: float) -> None:
        """From `at_s` on a node of `pool` costs `usd_per_h`."""
        running = [node for node, (where, _) in self._open.items() if where == pool]
        for node in running:
            self._end(node, at_s)
        self._usd_per_h[pool] = usd_per_h
        for node in running:
            self._open[node] = pool, at_s

    def end_node(self, node: str, at_s: float) -> None:
        """A node is gone: nobody bills it any more."""
        self._end(node, at_s)

    def close(self, at_s: float) -> None:
        """Nothing is billed beyond `at_s`."""
        for node in list(self._open):
            self._end(node, at_s)
        cut = [span for span in self.spans if span.from_s < at_s]
        self.spans = [
            NodeSpan(s.node, s.pool, s.usd_per_h, s.from_s, min(s.to_s, at_s)) for s in cut
        ]

    def _end(self, node: str, at_s: float) -> None:
        found = self._open.pop(node, None)
        if found is not None and at_s > found[1]:
            pool, from_s = found
            self.spans.append(NodeSpan(node, pool, self._usd_per_h[pool], from_s, at_s))

    def _s(self, epoch_ms: int) -> float:
        return (epoch_ms - self._origin_ms) / 1000.0
