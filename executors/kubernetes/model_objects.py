"""ShoalModel objects: one for each declared model, so that `kubectl get shoalmodels` shows the
fleet. They are a view: nothing that happens to them changes the fleet.

Only the acting executor writes them. Without the kind, this module reads nothing and writes
nothing. Writes are limited, and a server that refuses one is left alone for a while.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Container, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Protocol

from executors.kubernetes import kube_names as names
from executors.kubernetes.controller_status import ModelReport
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_errors import Conflict, Forbidden, KubeError, NotFound, Temporary
from executors.kubernetes.kube_events import write_event
from executors.kubernetes.kube_kinds import POD, SHOAL_MODEL
from executors.kubernetes.model_view import (
    ModelView,
    build_model,
    is_urgent,
    parse_model,
    reported_status,
    silent_status,
    status_patch,
    unused_status,
    with_model,
)
from executors.kubernetes.object_cache import ObjectCache
from executors.kubernetes.pod_fleet import PodFleet

log = logging.getLogger(__name__)

EVERY_S = 5.0
MOST_WRITES = 10
"""Writes of one round, so at most 2 per second."""
FIGURES_S = 60.0
"""Seconds between two writes of an object of which only figures or texts differ."""
STALE_S = 30.0
"""Seconds without a report after which the objects say so."""
WITHDRAWN_S = 60.0
"""Seconds for which a model must be missing in reports until its object is deleted."""
REFUSED_S = 60.0
"""Seconds without writes after the server refused one."""


class Reports(Protocol):
    """The source of reports."""

    async def read(self) -> dict[str, ModelReport] | None:
        """The reports by model, None if no leading controller answers."""
        ...


@dataclass(frozen=True, slots=True)
class _Write:
    """One write. urgent: whether it comes before others. at_s: time of the last write to the same
    object."""

    urgent: bool
    at_s: float
    name: str
    send: Callable[[], Awaitable[None]]


class ModelObjects:
    """Keeps the objects of one executor. executor: its id. slots: its slots in mode `pods`, whose
    pods get their model as a further owner. clock_s: a monotonic clock."""

    def __init__(
        self,
        fleet: PodFleet,
        reports: Reports,
        executor: str,
        slots: Container[str],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._source = reports
        self._executor = executor
        self._slots = slots
        self._clock_s = clock_s
        self.objects: ObjectCache[ModelView] = ObjectCache(fleet.api, SHOAL_MODEL, parse_model)
        self._reports: dict[str, ModelReport] = {}
        self._reported_s: float | None = None
        self._began_s = clock_s()
        self._seen_s: dict[str, float] = {}
        self._written_s: dict[str, float] = {}
        self._refused_s: dict[str, float] = {}
        self._paused_until_s = 0.0

    async def run(self) -> None:
        """Keep the objects up to date until cancelled."""
        self._fleet.follow(self.objects)
        while True:
            if self.objects.synced and not self.objects.absent:
                await self.step()
            await asyncio.sleep(EVERY_S)

    async def step(self) -> None:
        """One round: read the reports, then write what differs."""
        found, now_s = await self._source.read(), self._clock_s()
        if found is not None:
            shown = {one.model for one in self.objects.objects.values()}
            # A new leader may know fewer models at first, so a gap counts for no model.
            former = self._seen_s.items() if self._is_fresh(now_s) else ()
            self._seen_s = {model: at_s for model, at_s in former if model in shown}
            self._seen_s |= dict.fromkeys(found, now_s)
            self._reports, self._reported_s = found, now_s
        if now_s < self._paused_until_s:
            return
        objects, refused = self.objects.objects, self._refused_s.items()
        self._written_s = {name: s for name, s in self._written_s.items() if name in objects}
        self._refused_s = {name: s for name, s in refused if now_s - s < REFUSED_S}
        waiting = [one for one in self._writes(now_s) if one.name not in self._refused_s]
        waiting.sort(key=lambda one: (not one.urgent, one.at_s, one.name))
        for write in waiting[:MOST_WRITES]:
            if not await self._send(write):
                return

    # -- inside -------------------------------------------------------------------------------

    async def _send(self, write: _Write) -> bool:
        """Write; returns whether further writes make sense now."""
        try:
            await write.send()
        except (Conflict, NotFound):
            return True  # it changed meanwhile: the next round sees it
        except Forbidden as error:
            log.warning("%s: %s; no write of a ShoalModel for %g s", write.name, error, REFUSED_S)
            self._paused_until_s = self._clock_s() + REFUSED_S
            return False
        except Temporary as error:
            log.info("%s: %s", write.name, error)
            self._paused_until_s = self._clock_s() + error.retry_after_s
            return False
        except KubeError as error:
            log.error("%s: %s", write.name, error)
            self._refused_s[write.name] = self._clock_s()
            return True
        if write.name in self.objects.objects:
            self._written_s[write.name] = self._clock_s()
        return True

    def _writes(self, now_s: float) -> Iterator[_Write]:
        mine = self._own()
        if self._is_fresh(now_s):
            for model in self._reports:
                name = names.object_name(model)
                if name not in self.objects.objects:
                    yield self._write(name, partial(self._create, model))
        for view in mine.values():
            yield from self._status_write(view, now_s)
        yield from self._owner_writes(mine)

    def _own(self) -> dict[str, ModelView]:
        """The objects that this executor may write, by name: its own, and those of people."""
        own = names.label_value(self._executor)
        return {
            name: view
            for name, view in self.objects.objects.items()
            if view.executor in ("", own) and not view.terminating
        }

    def _is_fresh(self, now_s: float) -> bool:
        return self._reported_s is not None and now_s - self._reported_s < STALE_S

    def _status_write(self, view: ModelView, now_s: float) -> Iterator[_Write]:
        now = datetime.now(UTC)
        report = self._reports.get(view.model) if view.takes_name else None
        if not self._is_fresh(now_s):
            since_s = self._began_s if self._reported_s is None else self._reported_s
            if now_s - since_s < STALE_S:
                return
            wanted = silent_status(view, now)
        elif report is not None:
            wanted = reported_status(view, report, now)
        elif view.takes_name and view.executor:
            if now_s - self._seen_s.setdefault(view.model, now_s) >= WITHDRAWN_S:
                yield self._write(view.name, partial(self._delete, view))
            return
        else:
            wanted = unused_status(view, view.model in self._reports, now)
        change = status_patch(view.status, wanted)
        if not change:
            return
        urgent = is_urgent(view.status, wanted)
        if urgent or now_s - self._written_s.get(view.name, -FIGURES_S) >= FIGURES_S:
            yield self._write(view.name, partial(self._patch, view, change), urgent)

    def _owner_writes(self, mine: dict[str, ModelView]) -> Iterator[_Write]:
        """Pods that do not have their model as an owner yet."""
        by_label = {names.label_value(one.model): one for one in mine.values() if one.takes_name}
        for pod in self._fleet.pods.objects.values():
            view = by_label.get(pod.labels.get(names.MODEL, ""))
            made = pod.labels.get(names.MANAGED) == "true" and not pod.terminating
            if view is None or not made or pod.labels.get(names.SLOT) not in self._slots:
                continue
            owners = with_model(pod.owners, view)
            if owners is not None:
                change = {"metadata": {"ownerReferences": owners}}
                yield self._write(pod.name, partial(self._patch_pod, pod.name, change), False)

    def _write(self, name: str, send: Callable[[], Awaitable[None]], urgent: bool = True) -> _Write:
        return _Write(urgent, self._written_s.get(name, 0.0), name, send)

    async def _patch_pod(self, name: str, change: Manifest) -> None:
        self._fleet.store(await self._fleet.api.patch(POD, name, change))

    async def _create(self, model: str) -> None:
        made = await self._fleet.api.create(SHOAL_MODEL, build_model(model, self._executor))
        self.objects.put(made)
        view, report = parse_model(made), self._reports.get(model)
        if report is not None:
            await self._patch(view, reported_status(view, report, datetime.now(UTC)))

    async def _patch(self, view: ModelView, change: Manifest) -> None:
        stored = await self._fleet.api.patch_status(SHOAL_MODEL, view.name, {"status": change})
        self.objects.put(stored)
        decision: Any = change.get("lastDecision")
        if decision:
            about = (SHOAL_MODEL, view.name, view.uid)
            kind = "Warning" if decision["kind"] == "Infeasible" else "Normal"
            event = write_event(self._fleet.api, about, decision["kind"], decision["message"], kind)
            self._fleet.spawn(event)

    async def _delete(self, view: ModelView) -> None:
        await self._fleet.api.delete(SHOAL_MODEL, view.name, 0)
