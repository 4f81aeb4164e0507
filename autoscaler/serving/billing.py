"""The bill of a fleet: spans of node time at their prices, from node statuses and prices.

A whole node is billed from the launch of its first instance until a status shows the node without
instances, including idle and starting time. The order in which statuses and prices arrive does not
change the bill.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from topics.fleet import Status

_NEW_NODE_MS = 60_000
"""A node whose first instance was launched later than this after its last status is a new node with
the name of one that was lost."""


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
    """Converts statuses and prices to spans.

    usd_per_h: price of a node, by pool. origin_ms: time of second 0. since_s: nothing is billed
    before.
    """

    def __init__(
        self, usd_per_h: Mapping[str, float], origin_ms: int, since_s: float = float("-inf")
    ) -> None:
        self._prices = {pool: [(float("-inf"), usd)] for pool, usd in usd_per_h.items()}
        self._origin_ms = origin_ms
        self._since_s = since_s
        self._open: dict[str, tuple[str, float]] = {}
        self._heard_ms: dict[str, int] = {}
        self._ended_s: dict[str, float] = {}
        self._closed: list[tuple[str, str, float, float]] = []
        self._settled_usd = 0.0

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
        """Add a node's status. A status that is older than the last one of its node is ignored,
        and a node of a pool without a price."""
        node, heard_ms = status.node, self._heard_ms.get(status.node)
        if (heard_ms is not None and status.at_ms < heard_ms) or status.pool not in self._prices:
            return
        self._heard_ms[node] = status.at_ms
        if not status.instances:
            self.end_node(node, self._s(status.at_ms))
            return
        if node in self._open and (heard_ms is None or status.at_ms <= heard_ms + _NEW_NODE_MS):
            return
        launched = [item.launched_ms for item in status.instances if item.launched_ms]
        if not launched:
            return
        if heard_ms is not None and min(launched) > heard_ms + _NEW_NODE_MS:
            self.end_node(node, self._s(heard_ms))
        if node not in self._open:
            # Instances of a node that was on the bill before are billed only once.
            least_s = self._ended_s.get(node, self._since_s)
            self._open[node] = status.pool, max(self._s(min(launched)), least_s)

    def record_unchanged(self, node: str, at_ms: int) -> None:
        """Add a status of `node` at `at_ms` whose instances are those of its last one."""
        self._heard_ms[node] = at_ms

    def reprice(self, pool: str, usd_per_h: float, at_s: float) -> None:
        """Set the price of a node of `pool` from `at_s` on, until a later one."""
        steps = self._prices.setdefault(pool, [])
        known = [index for index, (step_s, _) in enumerate(steps) if step_s == at_s]
        if known:
            steps[known[0]] = at_s, usd_per_h
        else:
            insort(steps, (at_s, usd_per_h))

    def end_node(self, node: str, at_s: float) -> None:
        """End the span of `node` at `at_s`, because the node is released."""
        if node in self._open:
            pool, from_s = self._open.pop(node)
            self._ended_s[node] = max(from_s, at_s)
            if from_s < at_s:
                self._closed.append((node, pool, from_s, at_s))

    def lose(self, node: str) -> None:
        """End the span of `node` at its last status, because it will report nothing more."""
        if node in self._open:
            self.end_node(node, self._s(self._heard_ms[node]))

    def until(self, at_s: float) -> list[NodeSpan]:
        """All spans up to `at_s`, including those of nodes that are billed now."""
        still = [(node, pool, from_s, at_s) for node, (pool, from_s) in self._open.items()]
        return [
            span
            for node, pool, from_s, to_s in (*self._closed, *still)
            for span in self._priced(node, pool, from_s, min(to_s, at_s))
        ]

    def reported(self) -> list[NodeSpan]:
        """All spans, those of nodes that are billed now up to their last status.

        So a node that was lost costs nothing after its last status, and if it reports again, the
        time between is billed.
        """
        still = [
            (node, pool, from_s, self._s(self._heard_ms[node]))
            for node, (pool, from_s) in self._open.items()
        ]
        return [span for one in (*self._closed, *still) for span in self._priced(*one)]

    def reported_usd(self) -> float:
        """Cost of the spans of `reported`, and of the settled time before them."""
        return self._settled_usd + sum(span.usd for span in self.reported())

    def settle(self, before_s: float) -> None:
        """Sum up the time before `before_s`, whose prices no longer change, so that memory stays
        bounded. It leaves the spans. A node that has not reported since then counts as lost. If it
        reports again, the oldest price that is kept holds for the time before."""
        for node in [one for one in self._open if self._s(self._heard_ms[one]) < before_s]:
            self.lose(node)
        for node, (pool, from_s) in self._open.items():
            if from_s < before_s:
                self._settle(self._priced(node, pool, from_s, before_s))
                self._open[node] = pool, before_s
        over = [one for one in self._closed if one[3] <= before_s]
        self._closed = [one for one in self._closed if one[3] > before_s]
        for one in over:
            self._settle(self._priced(*one))
        froms = (from_s for _, from_s in self._open.values())
        first_s = min((before_s, *froms, *(from_s for _, _, from_s, _ in self._closed)))
        for pool, steps in self._prices.items():
            last = max(0, bisect_right(steps, first_s, key=lambda step: step[0]) - 1)
            self._prices[pool] = [(float("-inf"), steps[last][1]), *steps[last + 1 :]]

    def _settle(self, spans: Iterator[NodeSpan]) -> None:
        self._settled_usd += sum(span.usd for span in spans)

    def _priced(self, node: str, pool: str, from_s: float, to_s: float) -> Iterator[NodeSpan]:
        """The time of `node` from `from_s` to `to_s`, one span for each price."""
        steps = self._prices[pool]
        first = bisect_right(steps, from_s, key=lambda step: step[0]) - 1
        for index in range(max(0, first), len(steps)):
            step_s, usd_per_h = steps[index]
            next_s = steps[index + 1][0] if index + 1 < len(steps) else to_s
            begin_s, end_s = max(from_s, step_s), min(to_s, next_s)
            if begin_s < end_s:
                yield NodeSpan(node, pool, usd_per_h, begin_s, end_s)

    def _s(self, epoch_ms: int) -> float:
        return (epoch_ms - self._origin_ms) / 1000.0
