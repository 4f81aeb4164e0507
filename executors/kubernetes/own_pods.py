"""Mode `pods`: each launch becomes a separate pod, made from the operator's template. The name of a
pod follows from its instance and attempt, so a repeated create, even by a later executor, cannot
make a second pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from executors.engines.engine_protocol import LaunchLine
from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod, Wait
from executors.kubernetes.group_ranks import is_worker
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_errors import Conflict, Forbidden, KubeError, NotFound, Temporary
from executors.kubernetes.kube_events import write_start_event
from executors.kubernetes.kube_kinds import NAMESPACE, POD
from executors.kubernetes.pod_fleet import PodFleet, persist
from executors.kubernetes.pod_template import (
    PodLaunch,
    PodSettings,
    build_pod,
    dump_launch,
    owned_by,
    parse_template,
    read_launch,
    with_role,
)
from executors.kubernetes.pod_view import PodView, metadata_change, parse_pod
from executors.kubernetes.template_folder import template_text
from topics.checks import InvalidValue
from topics.fleet import InstanceState, LaunchCode
from topics.launch_version import template_part

log = logging.getLogger(__name__)

KILL_GRACE_S = 1  # seconds; 0 would remove the pod before its processes have ended
STRAY_GRACE_S = 30  # seconds; short, because routes never contain a second pod of an instance
_NAME_TAKEN_S = 0.5
_LONGEST_TEMPLATE = 64_000
"""Longest template that is kept with its pod, of the 256 KiB that all annotations may have."""


class Placer(Protocol):
    """Finds or makes the pods of one slot's engines. No method waits.

    launch_basis: see `Status`.
    """

    @property
    def launch_basis(self) -> str: ...

    def templates(self, engines: Iterable[str]) -> dict[str, str]:
        """See `Status`. engines: names of the configured engines."""
        ...

    def adopt(self) -> list[EnginePod]:
        """The engines that an earlier executor left, the oldest first."""
        ...

    def start(
        self, launch: PodLaunch, line: Callable[[], LaunchLine], image: str, grace_s: int
    ) -> EnginePod:
        """Begin a launch. line: function that makes the command line. Raises ValueError if the
        launch cannot begin."""
        ...

    def stop(self, engine: EnginePod, grace_s: int) -> None:
        """Begin to stop an engine; requests in flight have `grace_s`."""
        ...

    def kill(self, engine: EnginePod) -> None:
        """Begin to stop an engine at once."""
        ...

    def hand_over(self, engine: EnginePod) -> bool:
        """Give `engine`, whose pod leaves, another pod that serves; returns whether there is
        one."""
        ...

    def moves(self, engine: EnginePod) -> bool:
        """Whether the placer replaces the pod of `engine` before it must leave its node."""
        ...

    def release(self, engine: EnginePod, remove: bool) -> None:
        """Note that an engine ended. remove: whether its pod still exists and must be deleted."""
        ...

    def mark(self, engine: EnginePod, state: InstanceState, launch: PodLaunch) -> bool:
        """Update the labels of an engine's pod; returns whether they are up to date."""
        ...

    def held_gpus(self, known: Mapping[str, EnginePod]) -> set[int] | None:
        """GPUs that pods without an engine in `known` hold; None = all GPUs of the slot."""
        ...


class Templates(Protocol):
    """The operator's pod templates."""

    def template(self, pool: str, engine: str, digest: str = "") -> Manifest:
        """The template with this digest if it is known, else the present one for an engine in a
        pool. Raises InvalidValue if there is no valid one."""
        ...

    def digest(self, pool: str, engine: str) -> str:
        """The digest of the present template. Raises InvalidValue if there is no valid one."""
        ...

    def remember(self, template: Manifest) -> str:
        """Keep a template; returns its digest."""
        ...


class OwnPods:
    """`Placer` of one slot in mode `pods`. launch_basis: "", because a launch reads the template
    again."""

    launch_basis = ""

    def __init__(
        self, slot: str, fleet: PodFleet, templates: Templates, settings: PodSettings
    ) -> None:
        self._slot = slot
        self._fleet = fleet
        self._templates = templates
        self._settings = settings
        self._creating: dict[EnginePod, asyncio.Task[None]] = {}
        self._marking: set[str] = set()
        self._removing: set[str] = set()
        self._unreadable: set[str] = set()

    def templates(self, engines: Iterable[str]) -> dict[str, str]:
        """See `Placer`. A pool without a template for any engine is a fault."""
        pool, found, why = self._settings.pool, {}, ""
        for engine in engines:
            try:
                found[engine] = self._templates.digest(pool, engine)
            except InvalidValue as error:
                why = f"no pods in {pool}: {error}"
        self._fleet.faults.pop(pool, None)
        if why and not found:
            self._fleet.faults[pool] = why
        return found

    def adopt(self) -> list[EnginePod]:
        """See `Placer`. Also learns the templates of the pods."""
        found = []
        for pod in self._fleet.in_slot(self._slot, managed=True):
            launch = read_launch(pod.annotations)
            if launch is None or pod.over or pod.terminating:
                continue
            with contextlib.suppress(ValueError):
                self._templates.remember(parse_template(pod.annotations.get(names.TEMPLATE, "")))
            found.append(EnginePod(with_role(launch, pod.labels), pod.name, created=True))
        return found

    def start(
        self, launch: PodLaunch, line: Callable[[], LaunchLine], image: str, grace_s: int
    ) -> EnginePod:
        """See `Placer`."""
        template = self._templates.template(
            self._settings.pool, launch.desired.engine, template_part(launch.desired.version)
        )
        launch = replace(launch, template=self._templates.remember(template))
        manifest = build_pod(template, self._settings, self._slot, launch, line(), image, grace_s)
        text = template_text(template)
        if len(text) <= _LONGEST_TEMPLATE:
            manifest["metadata"]["annotations"][names.TEMPLATE] = text
        engine = EnginePod(launch, launch.pod)
        self._creating[engine] = self._fleet.spawn(self._create(engine, manifest))
        return engine

    def stop(self, engine: EnginePod, grace_s: int) -> None:
        """See `Placer`."""
        engine.stopping = True
        self._fleet.spawn(self._delete(engine, grace_s))

    def kill(self, engine: EnginePod) -> None:
        """See `Placer`."""
        self.stop(engine, KILL_GRACE_S)

    def hand_over(self, engine: EnginePod) -> bool:
        """See `Placer`. False: each launch has a pod of its own."""
        return False

    def moves(self, engine: EnginePod) -> bool:
        """See `Placer`. False: the plan starts another instance instead."""
        return False

    def release(self, engine: EnginePod, remove: bool) -> None:
        """See `Placer`."""
        if remove:
            self._remove(engine.pod, KILL_GRACE_S)

    def mark(self, engine: EnginePod, state: InstanceState, launch: PodLaunch) -> bool:
        """See `Placer`."""
        pod = self._fleet.pods.objects.get(engine.pod)
        if pod is None or not engine.created:
            return False
        # A new pod has the label "false". An adopted one that serves stays in the routes.
        starts = state is InstanceState.STARTING
        serving = pod.labels.get(names.SERVING) if starts else serving_label(state)
        if is_worker(engine) and serving == "true":
            serving = "false"  # requests go to rank 0 alone
        labels: dict[str, str | None] = {
            names.SERVING: serving,
            names.ROLE: launch.desired.phase,
            names.GROUP: names.label_value(launch.desired.group),
        }
        annotations: dict[str, str | None] = {names.LAUNCH: dump_launch(launch)}
        change = metadata_change(pod, labels, annotations)
        if not change:
            return True
        if engine.pod not in self._marking:
            self._marking.add(engine.pod)
            self._fleet.spawn(self._patch(engine.pod, change))
        return False

    def held_gpus(self, known: Mapping[str, EnginePod]) -> set[int] | None:
        """See `Placer`. Pods that no instance needs are deleted."""
        own = {engine.pod for engine in known.values()}
        held: set[int] = set()
        unreadable = False
        for pod in self._fleet.in_slot(self._slot, managed=True):
            if pod.name in own:
                continue
            launch = read_launch(pod.annotations)
            if launch is None and not pod.over:
                # Another version may have made it, and it may serve: its owner decides.
                self._report_unreadable(pod.name)
                unreadable = True
                continue
            if not pod.terminating:
                self._remove(pod.name, KILL_GRACE_S if pod.over else STRAY_GRACE_S)
            if launch is not None and not pod.over:
                held.update(launch.desired.gpus)
        return None if unreadable else held

    # -- inside -------------------------------------------------------------------------------

    async def _create(self, engine: EnginePod, manifest: Manifest) -> None:
        what = f"creation of pod {engine.pod}"

        def hold_up(error: KubeError) -> None:
            engine.held_up = Wait(*_refusal(error))

        try:
            while True:
                try:
                    stored = await persist(lambda: self._create_owned(manifest), what, hold_up)
                    break
                except Conflict as error:
                    if not error.exists:
                        raise
                found = await self._existing(engine.pod)
                if found is not None and _is_launch(parse_pod(found), engine.launch):
                    stored = found  # an earlier attempt of this create has succeeded
                    break
                # An earlier pod of the same name is still being deleted.
                await asyncio.sleep(_NAME_TAKEN_S)
        except KubeError as error:
            engine.fail(*_refusal(error), pool_fails=True)
            return
        finally:
            self._creating.pop(engine, None)
        self._fleet.store(stored)
        engine.created = True
        pod = parse_pod(stored)
        self._fleet.spawn(write_start_event(self._fleet.api, pod, engine.launch, self._slot))

    async def _create_owned(self, manifest: Manifest) -> Manifest:
        """Create a pod that the namespace owns. The uid is read each time, because a namespace that
        was made again has another one, and a pod of an absent owner is deleted."""
        api = self._fleet.api
        try:
            owner = owned_by(await api.read(NAMESPACE, api.namespace))
        except Forbidden:
            log.warning("no right to read namespace %s: pod %s gets no owner, so kubectl drain "
                        "needs --force", api.namespace, manifest["metadata"]["name"])  # fmt: skip
            owner = []
        meta = {**manifest["metadata"], "ownerReferences": owner}
        return await api.create(POD, {**manifest, "metadata": meta})

    async def _existing(self, name: str) -> Manifest | None:
        try:
            return await persist(lambda: self._fleet.api.read(POD, name), f"read of pod {name}")
        except NotFound:
            return None

    async def _delete(self, engine: EnginePod, grace_s: int) -> None:
        creating = self._creating.get(engine)
        if creating is not None:
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)
        if await self._fleet.delete_pod(engine.pod, grace_s):
            engine.gone = True

    async def _patch(self, name: str, change: Manifest) -> None:
        try:
            await self._fleet.mark_pod(name, change)
        finally:
            self._marking.discard(name)

    def _report_unreadable(self, name: str) -> None:
        if name not in self._unreadable:
            self._unreadable.add(name)
            log.error("%s: pod %s has no launch that can be read, so the slot starts nothing until "
                      "it is deleted", self._slot, name)  # fmt: skip

    def _remove(self, name: str, grace_s: int) -> None:
        if name not in self._removing:
            self._removing.add(name)
            log.info("%s: deleting pod %s, which no instance needs", self._slot, name)
            self._fleet.spawn(self._removal(name, math.ceil(grace_s)))

    async def _removal(self, name: str, grace_s: int) -> None:
        try:
            await self._fleet.delete_pod(name, grace_s)
            await asyncio.sleep(1.0)  # until the watch shows the deletion
        finally:
            self._removing.discard(name)


def serving_label(state: InstanceState) -> str:
    """The value of the serving label for an instance in `state`."""
    if state is InstanceState.READY:
        return "true"
    over = (InstanceState.DRAINING, InstanceState.STOPPING, InstanceState.STOPPED)
    return "draining" if state in over else "false"


def _refusal(error: KubeError) -> tuple[LaunchCode, str]:
    if isinstance(error, Temporary):
        away = LaunchCode.ADMISSION_AWAY if error.of_webhook else LaunchCode.NO_ANSWER
        return away, str(error)
    if isinstance(error, Forbidden) and error.over_quota:
        return LaunchCode.QUOTA, f"quota: {error}"
    if isinstance(error, Forbidden) and error.no_right:
        return LaunchCode.NO_RIGHT, f"not allowed: {error}"
    return LaunchCode.REFUSED, f"pod refused: {error}"


def _is_launch(pod: PodView, launch: PodLaunch) -> bool:
    """Whether `pod` belongs to `launch` and is alive."""
    found = read_launch(pod.annotations)
    if found is None or pod.terminating or pod.over:
        return False
    return (found.desired.instance, found.attempt) == (launch.desired.instance, launch.attempt)
