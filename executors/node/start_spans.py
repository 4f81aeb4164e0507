"""Spans of instances from the assignment to readiness. They continue the assignment's trace."""

from __future__ import annotations

from executors.node.node_state import InstanceRecord, NodeState
from topics.fleet import InstanceState
from topics.spans import Span, Spans

_READY = (InstanceState.READY, InstanceState.SWITCHING)


class StartSpans:
    """Spans of the instances of one node that start now."""

    def __init__(self, spans: Spans, node: str) -> None:
        self._spans = spans
        self._node = node
        self._open: dict[str, tuple[Span, int]] = {}

    def step(self, before: NodeState, after: NodeState, now_ms: int) -> None:
        """Open the spans of new instances, and end those of ready, failed and removed ones."""
        if not self._spans.on or before.instances == after.instances:
            return
        known = {item.instance for item in before.instances}
        parent = after.assignment.trace if after.assignment is not None else ""
        items = {item.instance: item for item in after.instances}
        for name in items.keys() - known:
            self._open[name] = self._spans.open("start", now_ms, parent), now_ms
        for name in [*self._open]:
            item = items.get(name)
            if item is None or item.state is InstanceState.FAILED or item.state in _READY:
                self._end(name, item, now_ms)

    def _end(self, name: str, item: InstanceRecord | None, now_ms: int) -> None:
        span, opened_ms = self._open.pop(name)
        attributes: dict[str, str | int] = {"shoal.node": self._node, "shoal.instance": name}
        error = "removed before it was ready"
        if item is not None:
            attributes |= {
                "shoal.model": item.desired.model,
                "shoal.group": item.desired.group,
                "shoal.restarts": item.restarts,
            }
            error = "" if item.state in _READY else item.reason or "failed"
            if item.launched_ms >= opened_ms:
                span.add_event("launched", item.launched_ms)
        span.end(now_ms, attributes, error)
