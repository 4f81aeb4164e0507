"""Names that are declared: records of any other node, model or pool are left out, and counted.

Owns what declares a name. A pool declares its nodes ("us-east.h100.spot.0" up to its `max_nodes`),
and so does an assignment that still has instances: its pool may be smaller now, or gone. Models are
those of the file and of the `services` topic. A name that nobody declared costs one count: nothing
is kept by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.node_names import NodeNames
from topics.records import Assignment, Availability, Control, Price, RateHour, Status

_KEPT_SCOPES = 10_000
"""Controls of undeclared models, which may be declared later, are taken up to so many."""


class Known:
    """cluster: as declared now. assignments: by node. dropped: records left out, by topic, which
    are counted there."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        assignments: Mapping[str, Assignment],
        dropped: Counter[str] | None = None,
    ) -> None:
        self._cluster = cluster
        self._assignments = assignments
        self._looked_at: Cluster | None = None
        self._nodes = NodeNames(())
        self._models: frozenset[str] = frozenset()
        self._pools: frozenset[str] = frozenset()
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def models(self) -> frozenset[str]:
        """Declared models, and services that stand for several."""
        self._look()
        return self._models

    def has_node(self, node: str) -> bool:
        """Whether `node` is declared, or something is assigned to it."""
        self._look()
        if node in self._nodes:
            return True
        assigned = self._assignments.get(node)
        return assigned is not None and bool(assigned.instances)

    def admits(self, topic: str, record: Any, controls: int = 0) -> bool:
        """Whether `record` speaks of declared names; counted under `topic` if not. controls: how
        many are kept already."""
        if isinstance(record, Status):
            admitted = self.has_node(record.node)
        elif isinstance(record, (Availability, Price)):
            self._look()
            admitted = record.pool in self._pools
        elif isinstance(record, RateHour):
            admitted = record.model in self.models()
        elif isinstance(record, Control):
            admitted = controls < _KEPT_SCOPES or record.scope in {"*", *self.models()}
        else:
            return True
        self.dropped[topic] += not admitted
        return admitted

    def _look(self) -> None:
        cluster = self._cluster()
        if cluster is self._looked_at:
            return
        self._looked_at = cluster
        self._nodes = NodeNames(cluster.pools)
        self._pools = frozenset(pool.id for pool in cluster.pools)
        routes = (route.name for route in cluster.routes)
        self._models = frozenset((*(service.model for service in cluster.services), *routes))
