"""Spans of the instances of a run, from node statuses: which GPUs they took, and in which state."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from topics.fleet import InstanceState, Status


class Use(StrEnum):
    """A use of GPUs by an instance."""

    STARTS = "starts"
    SERVES = "serves"
    LEAVES = "leaves"


_USE = {
    InstanceState.STARTING: Use.STARTS,
    InstanceState.SWITCHING: Use.STARTS,
    InstanceState.READY: Use.SERVES,
    InstanceState.DRAINING: Use.LEAVES,
    InstanceState.STOPPING: Use.LEAVES,
}
"""Instances in other states take no GPU."""


class InstanceSpan(NamedTuple):
    """An instance of `group` took `gpus` GPUs of `node` for `use` from `from_s` to `to_s`."""

    node: str
    group: str
    gpus: int
    use: Use
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class _Open:
    group: str
    gpus: int
    use: Use
    from_s: float


class InstanceSpans:
    """Converts statuses, in the order of their times, to spans."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, _Open]] = {}
        self._closed: list[InstanceSpan] = []

    def record(self, status: Status, at_s: float) -> None:
        """Add a status of a node at second `at_s`."""
        known = self._open.setdefault(status.node, {})
        now = {
            one.instance: (one.group, len(one.gpus), use)
            for one in status.instances
            if (use := _USE.get(one.state)) is not None
        }
        for name, span in list(known.items()):
            if now.get(name) != (span.group, span.gpus, span.use):
                del known[name]
                self._close(status.node, span, at_s)
        for name, what in now.items():
            if name not in known:
                known[name] = _Open(*what, at_s)

    def lose(self, node: str, at_s: float) -> None:
        """End the spans of `node`, which is lost."""
        for span in self._open.pop(node, {}).values():
            self._close(node, span, at_s)

    def until(self, at_s: float) -> list[InstanceSpan]:
        """All spans up to `at_s`; call it once, at the end of the run."""
        for node in list(self._open):
            self.lose(node, at_s)
        return self._closed

    def _close(self, node: str, span: _Open, at_s: float) -> None:
        if span.from_s < at_s:
            self._closed.append(
                InstanceSpan(node, span.group, span.gpus, span.use, span.from_s, at_s)
            )
