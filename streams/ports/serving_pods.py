"""Count the serving pods that Shoal did not start, as `shoal kubernetes serving --serve` reports
them.

The cluster itself is never queried. A pod counts for its model as a server in the pool of its node
and with its own number of GPUs, whatever hardware `unmanaged` declares.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from autoscaler.domain.cluster import Cluster, Service
from autoscaler.domain.workload import Phase
from autoscaler.planning.combo_names import combo_id
from streams.files.served_names import unmanaged_names
from topics.error_text import error_text

log = logging.getLogger(__name__)

_EVERY_S, _TIMEOUT_S = 5.0, 5.0
_MOST_BYTES, _MOST_PODS = 16 * 2**20, 1_000_000


@dataclass(frozen=True, slots=True)
class PodCount:
    """Serving pods with equal labels and hardware. gpus: GPUs of one pod. ours: whether they are
    instances of Shoal's plan."""

    model: str
    role: str
    pool: str
    gpus: int
    ours: bool
    pods: int


class ServingPods:
    """fetch: returns the report's bytes, and raises OSError or ValueError. declared: the declared
    models and pools. counts: number of servers by model and combo, updated here. Counts stay
    unchanged if the report cannot be read, or if no pod has named the model so far."""

    def __init__(
        self,
        fetch: Callable[[], bytes],
        declared: Callable[[], Cluster],
        counts: MutableMapping[str, Mapping[str, int]],
    ) -> None:
        self._fetch = fetch
        self._declared = declared
        self._counts = counts
        self._warned: dict[str, str] = {}

    async def run(self) -> None:
        """Read the report every few real seconds until cancelled."""
        while True:
            await self.read_once()
            await asyncio.sleep(_EVERY_S)

    async def read_once(self) -> None:
        """Read the report once and count the pods of every model with `unmanaged`."""
        try:
            rows = parse_report(await asyncio.to_thread(self._fetch))
        except (OSError, ValueError) as error:
            self._warn_once(
                "", f"serving_pods cannot be read, the last counts stay: {error_text(error)}"
            )
            return
        self._warn_once("", "")
        cluster = self._declared()
        names = unmanaged_names(cluster.services)
        per_node = {pool.id: pool.per_node for pool in cluster.pools}
        for service in cluster.services:
            if service.unmanaged:
                called = {service.model, *names[service.model][1]}
                self._count(service, [row for row in rows if row.model in called], per_node)

    def _count(self, service: Service, rows: list[PodCount], per_node: Mapping[str, int]) -> None:
        model = service.model
        if not rows and model not in self._counts:
            self._warn_once(model, f"no serving pod names the model {model}")
            return
        foreign = [row for row in rows if not row.ours]
        fitting = [
            row for row in foreign
            if row.role == "aggregated" and 1 <= row.gpus <= per_node.get(row.pool, 0)
        ]  # fmt: skip
        others = sum(row.pods for row in foreign) - sum(row.pods for row in fitting)
        found = Counter[str]()
        for row in fitting:
            found[combo_id(model, [(Phase.AGGREGATED, row.gpus, row.pool, 1)])] += row.pods
        self._counts[model] = dict(found) or {service.unmanaged: 0}
        self._warn_once(
            model,
            f"{others} serving pods of {model} are not counted, because they serve one role, or "
            f"their nodes are in no declared pool with that many GPUs per node"
            if others
            else "",
        )

    def _warn_once(self, about: str, text: str) -> None:
        if text and self._warned.get(about) != text:
            log.warning("%s", text)
        self._warned[about] = text


def parse_report(raw: bytes) -> list[PodCount]:
    """The rows of a report. ValueError: it is none."""
    found: Any = orjson.loads(raw)
    if not isinstance(found, list):
        raise ValueError("not a list of serving pods")
    return [_row(row) for row in found]


def _row(row: Any) -> PodCount:
    try:
        model, role, pool = row["model"], row["role"], row["pool"]
        gpus, ours, pods = row["gpus"], row["managed"], row["pods"]
    except (KeyError, TypeError):
        raise ValueError("a row without model, role, pool, gpus, managed or pods") from None
    if not all(isinstance(text, str) for text in (model, role, pool)) or type(ours) is not bool:
        raise ValueError("a row whose model, role, pool or managed has another type")
    if not all(type(number) is int and 0 <= number <= _MOST_PODS for number in (gpus, pods)):
        raise ValueError(f"gpus or pods of a row is no whole number from 0 to {_MOST_PODS}")
    return PodCount(model, role, pool, gpus, ours, pods)


def report_at(url: str) -> Callable[[], bytes]:
    """A function that fetches the report at `url`."""

    def fetch() -> bytes:
        with urllib.request.urlopen(url, timeout=_TIMEOUT_S) as answer:  # noqa: S310  checked
            data: bytes = answer.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValueError(f"more than {_MOST_BYTES} bytes")
        return data

    return fetch
