"""Count the serving pods that Shoal did not start, as `shoal kubernetes serving --serve` reports
them.

The cluster itself is never queried. A pod counts for its model only if it is in the pool and has
the number of GPUs that `unmanaged` declares, because recommendations assume that hardware.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.request
from collections.abc import Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any

import orjson

from autoscaler.domain.cluster import Service
from autoscaler.planning.combo_names import parse_combo_id
from streams.files.served_names import unmanaged_names

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
    """fetch: returns the report's bytes, and raises OSError or ValueError. services: the declared
    models. counts: number of servers by model, updated here. A count stays unchanged if the report
    cannot be read, or if no pod has named the model so far."""

    def __init__(
        self,
        fetch: Callable[[], bytes],
        services: Callable[[], Iterable[Service]],
        counts: MutableMapping[str, int],
    ) -> None:
        self._fetch = fetch
        self._services = services
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
            self._warn_once("", f"serving_pods cannot be read, the last counts stay: {error}")
            return
        self._warn_once("", "")
        services = tuple(self._services())
        names = unmanaged_names(services)
        for service in services:
            if service.unmanaged:
                called = {service.model, *names[service.model]}
                self._count(service, [row for row in rows if row.model in called])

    def _count(self, service: Service, rows: list[PodCount]) -> None:
        model = service.model
        if not rows and model not in self._counts:
            self._warn_once(model, f"no serving pod names the model {model}")
            return
        _, ((_, gpus, pool, _), *_) = parse_combo_id(service.unmanaged)
        foreign = [row for row in rows if not row.ours]
        fitting = [
            row for row in foreign
            if (row.role, row.pool, row.gpus) == ("aggregated", pool, gpus)
        ]  # fmt: skip
        others = sum(row.pods for row in foreign) - sum(row.pods for row in fitting)
        self._counts[model] = sum(row.pods for row in fitting)
        self._warn_once(
            model,
            f"{others} serving pods of {model} are not counted, because models.{model}.unmanaged "
            f"declares pool {pool} and {gpus} GPUs for aggregated servers"
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
