"""State that all slots of one executor share: the client, the local copies, background writes.

Writes run in tasks and are repeated until the server accepts or refuses them, so that no step of a
node waits for the API server.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import KubeApi, Manifest
from executors.kubernetes.kube_errors import Forbidden, KubeError, NotFound, Temporary
from executors.kubernetes.kube_events import write_serving_event
from executors.kubernetes.kube_kinds import NODE, POD
from executors.kubernetes.node_view import NodeView, parse_node
from executors.kubernetes.object_cache import ObjectCache
from executors.kubernetes.pod_view import PodView, parse_pod

log = logging.getLogger(__name__)

T = TypeVar("T")

_LONGEST_FAULT = 1000
_LEAST_PAUSE_S, _MOST_PAUSE_S = 0.1, 5.0
_NO_RIGHT_S, _NO_RIGHT_PAUSE_S = 20.0, 1.0


class PodFleet:
    """The pods of a namespace that match `labels` and, if `with_nodes` (this process may read
    nodes), the nodes of the cluster. faults: texts by the object that cannot be handled.
    """

    def __init__(self, api: KubeApi, labels: str, with_nodes: bool = True) -> None:
        self.api = api
        self._with_nodes = with_nodes
        self._by_slot: dict[str, list[PodView]] | None = None
        self.pods: ObjectCache[PodView] = ObjectCache(
            api, POD, parse_pod, labels, on_change=self._changed
        )
        self.nodes: ObjectCache[NodeView] = ObjectCache(api, NODE, parse_node)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._followed: list[ObjectCache[Any]] = []
        self.faults: dict[str, str] = {}

    def start(self) -> None:
        """Begin to follow pods and nodes."""
        self.follow(self.pods)
        if self._with_nodes:
            self.follow(self.nodes)

    def follow(self, cache: ObjectCache[Any]) -> None:
        """Keep `cache` up to date until `close`. Its faults become faults of the fleet."""
        self._followed.append(cache)
        self.spawn(cache.run())

    @property
    def fault(self) -> str:
        """The reasons why the local copies are not current, or objects not handled, "" = none."""
        faults = [one.fault for one in self._followed if one.fault and not one.absent]
        return "; ".join([*faults, *self.faults.values()])[:_LONGEST_FAULT]

    async def close(self) -> None:
        """Stop following, and cancel pending writes."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run `work` in the background; a failure of it is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def in_slot(self, slot: str, managed: bool) -> list[PodView]:
        """The pods of a slot, the oldest first. managed: pods that Shoal made, else pods of other
        owners."""
        if self._by_slot is None:
            found: dict[str, list[PodView]] = {}
            order = sorted(self.pods.objects.values(), key=lambda pod: (pod.created_s, pod.name))
            for pod in order:
                value = pod.labels.get(names.SLOT, "")
                if value:
                    found.setdefault(value, []).append(pod)
            self._by_slot = found
        every = self._by_slot.get(names.label_value(slot), [])
        return [pod for pod in every if (pod.labels.get(names.MANAGED) == "true") is managed]

    def node_of(self, pod: PodView) -> NodeView | None:
        """The node of a pod, None if unknown."""
        return self.nodes.objects.get(pod.node) if pod.node else None

    async def patch_pod(self, name: str, change: Mapping[str, Any]) -> bool:
        """Patch a pod until the server accepts or refuses it; returns whether it accepted."""
        try:
            stored = await persist(
                lambda: self.api.patch(POD, name, change), f"patch of pod {name}"
            )
        except NotFound:
            return False
        except KubeError as error:
            log.error("pod %s cannot be patched: %s", name, error)
            return False
        self.store(stored)
        return True

    async def mark_pod(self, name: str, change: Manifest) -> bool:
        """Patch the metadata of a pod; returns whether the server accepted. If the pod begins or
        ceases to serve by it, an Event says so."""
        pod = self.pods.objects.get(name)
        serving = str((change.get("labels") or {}).get(names.SERVING) or "")
        if not await self.patch_pod(name, {"metadata": change}):
            return False
        if pod is not None and serving != pod.labels.get(names.SERVING, ""):
            self.spawn(write_serving_event(self.api, pod, serving, self.pods.objects.values()))
        return True

    async def delete_pod(self, name: str, grace_s: int) -> bool:
        """Delete a pod until the server accepts it; returns whether no such pod exists any more."""
        try:
            await persist(lambda: self.api.delete(POD, name, grace_s), f"deletion of pod {name}")
        except NotFound:
            return True
        except KubeError as error:
            log.error("pod %s cannot be deleted: %s", name, error)
        return False

    def store(self, manifest: Manifest) -> None:
        """Store a pod that a write returned."""
        self.pods.put(manifest)
        self._changed()

    # -- inside -------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._by_slot = None

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("background work failed", exc_info=task.exception())


async def persist(
    send: Callable[[], Coroutine[Any, Any, T]],
    what: str,
    on_failure: Callable[[KubeError], None] = lambda error: None,
) -> T:
    """The result of `send()`, repeated while the server is away or throttles. on_failure: called
    with each such failure.

    It is also repeated for a short time if a right is missing, because a starting server may not
    know the rights yet.
    """
    pause_s = _LEAST_PAUSE_S
    began_s = time.monotonic()
    while True:
        try:
            return await send()
        except Forbidden as refused:
            if not refused.no_right or time.monotonic() - began_s >= _NO_RIGHT_S:
                raise
            on_failure(refused)
            await asyncio.sleep(_NO_RIGHT_PAUSE_S)
        except Temporary as error:
            if pause_s == _LEAST_PAUSE_S:
                log.warning("%s: %s; retrying", what, error)
            on_failure(error)
            jitter = random.uniform(0.8, 1.2)  # noqa: S311  spreads the load of many clients
            await asyncio.sleep(max(error.retry_after_s, pause_s) * jitter)
            pause_s = min(_MOST_PAUSE_S, pause_s * 2)
