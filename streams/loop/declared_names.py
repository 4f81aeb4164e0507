"""Declared names of nodes, models and pools: records of any other name are dropped and counted.

A pool declares its nodes ("us-east.h100.spot.0" up to its `max_nodes`). A node with assigned
instances counts as declared even if its pool was reduced or removed. Models come from the file and
from the `services` topic. An undeclared name is counted and not stored, except for a limited number
of assignments and routes, which may belong to names that were withdrawn and still have instances.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from autoscaler.domain.cluster import Cluster
from autoscaler.domain.node_names import NodeNames
from topics.records import Assignment, Availability, Control, LedgerEntry, Price, Routes, Status

_KEPT_SCOPES = 10_000
"""Maximum number of stored controls for undeclared models, which may be declared later."""
_KEPT_UNDECLARED = 2_000
"""Maximum number of stored assignments and routes of undeclared names."""


class DeclaredNames:
    """Drops records of models, nodes and pools that are not declared. cluster: returns the current
    declared cluster. assignments: the latest by node. dropped: number of dropped records by topic,
    incremented here. stored: returns the number of stored assignments and routes."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        assignments: Mapping[str, Assignment],
        dropped: Counter[str] | None = None,
        stored: Callable[[], int] = lambda: 0,
    ) -> None:
        self._stored = stored
        self._cluster = cluster
        self._assignments = assignments
        self._looked_at: Cluster | None = None
        self._nodes = NodeNames(())
        self._models: frozenset[str] = frozenset()
        self._pools: frozenset[str] = frozenset()
        self._declared_keys = 0
        self.dropped: Counter[str] = Counter() if dropped is None else dropped

    def models(self) -> frozenset[str]:
        """Declared models, and services that route over several models."""
        self._refresh()
        return self._models

    def has_node(self, node: str) -> bool:
        """Whether `node` is declared or has an assignment, which may still have instances."""
        return self.declares_node(node) or node in self._assignments

    def declares_node(self, node: str) -> bool:
        """Whether a pool declares `node`."""
        self._refresh()
        return node in self._nodes

    def has_pool(self, pool: str) -> bool:
        """Whether `pool` is declared."""
        self._refresh()
        return pool in self._pools

    def admits(self, topic: str, record: Any, controls: int = 0) -> bool:
        """Whether all names in `record` are declared. If not, the record is counted under `topic`.

        controls: number of stored control records.
        """
        if isinstance(record, Status):
            admitted = self.has_node(record.node)
        elif isinstance(record, (Availability, Price)):
            admitted = self.has_pool(record.pool)
        elif isinstance(record, Assignment):
            admitted = self.declares_node(record.node) or self._has_room()
        elif isinstance(record, Routes):
            admitted = record.model in self.models() or self._has_room()
        elif isinstance(record, LedgerEntry):
            admitted = not record.model or record.model in self.models()
        elif isinstance(record, Control):
            admitted = controls < _KEPT_SCOPES or record.scope in {"*", *self.models()}
        else:
            return True
        self.dropped[topic] += not admitted
        return admitted

    def _has_room(self) -> bool:
        self._refresh()
        return self._stored() < self._declared_keys + _KEPT_UNDECLARED

    def _refresh(self) -> None:
        cluster = self._cluster()
        if cluster is self._looked_at:
            return
        self._looked_at = cluster
        self._nodes = NodeNames(cluster.pools)
        self._pools = frozenset(pool.id for pool in cluster.pools)
        routes = (route.name for route in cluster.routes)
        nodes = sum(pool.max_nodes for pool in cluster.pools)
        self._models = frozenset((*(service.model for service in cluster.services), *routes))
        self._declared_keys = nodes + len(self._models)
