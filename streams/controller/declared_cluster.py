"""The cluster as it is declared now: the file, and what the `services` topic says over it.

Owns putting the two together. A record that cannot be read is said once in the log and changes
nothing: the last good declaration of its model stands, its withdrawal included.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.validation import InvalidValue
from streams.controller.control_state import Latest
from streams.files.shoal_yaml import Config, parse_service
from streams.files.user_errors import UserError
from topics.records import DeclaredService

log = logging.getLogger(__name__)


class Declared:
    """Call it for the cluster of this moment; nothing is read anew unless a record came."""

    def __init__(self, config: Config, latest: Latest) -> None:
        self._config = config
        self._latest = latest
        self._read: dict[str, DeclaredService] = {}
        self._good: dict[str, Service] = {}
        self._gone: frozenset[str] = frozenset()
        self._absent: set[str] = set()
        self._cluster = config.cluster

    def __call__(self) -> Cluster:
        """The declared cluster."""
        records, gone = self._latest.services, frozenset(self._latest.withdrawn)
        new = [r for model, r in records.items() if self._read.get(model) is not r]
        if not new and gone == self._gone:
            return self._cluster
        for record in new:
            self._read[record.model] = record
            try:
                self._good[record.model] = parse_service(
                    self._config, record.model, record.declared
                )
            except (UserError, InvalidValue) as error:
                log.error("services: %s", error)
            else:
                self._absent.discard(record.model)
        self._absent |= gone - self._gone
        self._gone = gone
        self._cluster = self._joined()
        return self._cluster

    def _joined(self) -> Cluster:
        base = {service.model: service for service in self._config.cluster.services}
        services = tuple(s for m, s in {**base, **self._good}.items() if m not in self._absent)
        said = "".join(f"{m}\n{r.declared}\n" for m, r in sorted(self._read.items()))
        told = f"{self._config.cluster.content_hash} {said} {sorted(self._absent)}"
        known = {service.model for service in services}
        changed = services != self._config.cluster.services
        content = hashlib.sha256(told.encode()).hexdigest()[:12]
        return replace(
            self._config.cluster,
            services=services,
            routes=tuple(r for r in self._config.cluster.routes if known.issuperset(r.models)),
            content_hash=content if changed else self._config.cluster.content_hash,
        )
