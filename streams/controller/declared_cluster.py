"""Current declared cluster: the file, overridden by the `services` topic.

An invalid record changes nothing: the model keeps its last valid declaration or withdrawal. A
record that would make the first decision of a new controller fail is invalid too. The reason is
logged once. `ControlState.refused` has it until a valid record comes, for at most 100 models.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace

from autoscaler.decide import Observation, decide, restore
from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.validation import InvalidValue
from streams.files.shoal_yaml import Config, parse_service
from streams.files.user_errors import UserError, first_line
from streams.loop.control_state import ControlState
from topics.records import DeclaredService

log = logging.getLogger(__name__)


class DeclaredCluster:
    """Callable that returns the current cluster. The cluster is rebuilt only after a new record."""

    def __init__(self, config: Config, latest: ControlState) -> None:
        self._config = config
        self._latest = latest
        self._read: dict[str, DeclaredService] = {}
        self._good: dict[str, Service] = {}
        self._absent: set[str] = set()
        self._cluster = config.cluster

    def __call__(self) -> Cluster:
        """The current declared cluster."""
        records = self._latest.declared.services
        new = [r for model, r in records.items() if self._read.get(model) is not r]
        if not new and len(self._read) == len(records):
            return self._cluster
        finalized = self._read.keys() - records.keys()
        for record in new:
            self._take(record)
        for model in finalized:
            del self._read[model]
            self._forget(model)
            self._absent.discard(model)
        self._cluster = self._joined()
        return self._cluster

    def in_file(self, model: str) -> bool:
        """Whether the configuration file declares `model`, so that its withdrawal must stay."""
        cluster = self._config.cluster
        return any(service.model == model for service in cluster.services)

    def _forget(self, model: str) -> None:
        self._good.pop(model, None)
        self._latest.declared.refused.pop(model, None)

    def _take(self, record: DeclaredService) -> None:
        model = record.model
        self._read[model] = record
        if record.withdrawn:
            self._forget(model)
            self._absent.add(model)
            return
        try:
            service = parse_service(self._config, model, record.declared)
            check_decidable(
                replace(self._config.cluster, services=(service,), routes=()), record.at_ms
            )
        except Exception as error:
            # The file alone was valid at the start, so a record caused the exception.
            expected = isinstance(error, (UserError, InvalidValue))
            why = str(error) if expected else f"{type(error).__name__}: {first_line(error)}"
            log.error("services: %s", why, exc_info=None if expected else error)
            self._latest.declared.refuse(model, why)
        else:
            self._good[model] = service
            self._absent.discard(model)
            self._latest.declared.refused.pop(model, None)

    def _joined(self) -> Cluster:
        base = {service.model: service for service in self._config.cluster.services}
        services = tuple(s for m, s in {**base, **self._good}.items() if m not in self._absent)
        said = "".join(f"{m}\n{r.version}\n{r.declared}\n" for m, r in sorted(self._read.items()))
        told = f"{self._config.cluster.content_hash} {said} {sorted(self._absent)}"
        known = {service.model for service in services}
        changed = services != self._config.cluster.services
        content = hashlib.sha256(told.encode()).hexdigest()[:12]
        return replace(
            self._config.cluster,
            services=services,
            routes=tuple(r for r in self._config.cluster.routes if known.issuperset(r.models)),
            withdrawn=tuple(sorted(self._absent)),
            withdrawn_in_file=tuple(sorted(self._absent & base.keys())),
            content_hash=content if changed else self._config.cluster.content_hash,
        )


def check_decidable(cluster: Cluster, now_ms: int) -> None:
    """Run one decision for `cluster` from an empty state. Exceptions of that decision are not
    caught.
    """
    state = restore(cluster, {}, {}, {}, (), now_ms)
    decide(state, Observation(), cluster, now_ms)
