"""Declared names of nodes, models and pools: records of any other name are dropped and counted.

A pool declares its nodes ("us-east.h100.spot.0" up to its `max_nodes`). A node with assigned
instances counts as declared even if its pool was reduced or removed. Models come from the file and
from the `services` topic. An undeclared name is counted and not stored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.node_names import NodeNames
from topics.records import Assignment, Availability, Control, LedgerEntry, Price, Status

_KEPT_SCOPES = 10_000
"""Maximum number of stored controls for undeclared models, which may be declared later."""


class DeclaredNames:
    """Drops records of models, nodes and pools that are not declared. cluster: returns the current
    declared cluster. assignments: the latest by node. dropped: number of dropped records by topic,
    incremented here."""

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
        """Declared models, and services that route over several models."""
        self._refresh()
        return self._models

    def has_node(self, node: str) -> bool:
        """Whether `node` is declared or has assigned instances."""
        self._refresh()
        if node in self._nodes:
            return True
        assigned = self._assignments.get(node)
        return assigned is not None and bool(assigned.instances)

    def admits(self, topic: str, record: Any, controls: int = 0) -> bool:
        """Whether all names in `record` are declared. If not, the record is counted under `topic`.

        controls: number of stored control records.
        """
        if isinstance(record, Status):
            admitted = self.has_node(record.node)
        elif isinstance(record, (Availability, Price)):
            self._refresh()
            admitted = record.pool in self._pools
        elif isinstance(record, LedgerEntry):
            admitted = not record.model or record.model in self.models()
        elif isinstance(record, Control):
            admitted = controls < _KEPT_SCOPES or record.scope in {"*", *self.models()}
        else:
            return True
        self.dropped[topic] += not admitted
        return admitted

    def _refresh(self) -> None:
        cluster = self._cluster()
        if cluster is self._looked_at:
            return
        self._looked_at = cluster
        self._nodes = NodeNames(cluster.pools)
        self._pools = frozenset(pool.id for pool in cluster.pools)
        routes = (route.name for route in cluster.routes)
        self._models = frozenset((*(service.model for service in cluster.services), *routes))
