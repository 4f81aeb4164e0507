"""What the fleet costs: billed node time, from the status records of its nodes.

Owns the rule of billing: a node is paid whole from the launch of its first instance until a status
shows it without any, idle and starting time included. Knows no broker and no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autoscaler.domain.checks import InvalidValue, finite, whole
from topics.fleet import Status

_MS_PER_H = 3_600_000.0


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a node of a pool costs and holds; owned nodes cost 0 and count their GPU hours."""

    usd_per_node_h: float
    gpu: str
    gpus: int

    def __post_init__(self) -> None:
        finite("tariff: usd_per_node_h", self.usd_per_node_h, 0.0, 1e6)
        whole("tariff: gpus", self.gpus, 1, 64)


@dataclass(frozen=True, slots=True)
class Bill:
    """Billed until now. gpu_hours: by GPU type, of whole nodes."""

    usd: float = 0.0
    gpu_hours: Mapping[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class _Node:
    pool: str
    seen_ms: int
    open_ms: int = 0  # 0: not billed now
    closed_ms: int = 0  # billed time of spans that have ended


class Meter:
    """Fold status records in with `record`, read the bill at any time with `bill`.

    A status that is older than the last of its node changes nothing; a node that is not heard of
    any more is billed on, because nobody said that it was given back.
    """

    def __init__(self, tariffs: Mapping[str, Tariff]) -> None:
        self._tariffs = dict(tariffs)
        self._nodes: dict[str, _Node] = {}

    def record(self, status: Status) -> None:
        """Take a node's status in; InvalidValue when its pool has no tariff."""
        if status.pool not in self._tariffs:
            raise InvalidValue("status.pool", status.pool, " or ".join(self._tariffs))
        node = self._nodes.get(status.node)
        if node is None:
            node = self._nodes[status.node] = _Node(status.pool, status.at_ms)
        elif status.at_ms < node.seen_ms:
            return
        node.seen_ms = status.at_ms
        if node.open_ms and not status.instances:
            node.closed_ms += max(0, status.at_ms - node.open_ms)
            node.open_ms = 0
        launched = [i.launched_ms for i in status.instances if i.launched_ms]
        if not node.open_ms and launched:
            node.open_ms = min(launched)

    def bill(self, now_ms: int) -> Bill:
        """Everything billed until `now_ms`."""
        usd, gpu_hours = 0.0, dict[str, float]()
        for node in self._nodes.values():
            open_ms = max(0, now_ms - node.open_ms) if node.open_ms else 0
            hours = (node.closed_ms + open_ms) / _MS_PER_H
            if hours <= 0.0:
                continue
            tariff = self._tariffs[node.pool]
            usd += hours * tariff.usd_per_node_h
            gpu_hours[tariff.gpu] = gpu_hours.get(tariff.gpu, 0.0) + hours * tariff.gpus
        return Bill(usd, gpu_hours)
