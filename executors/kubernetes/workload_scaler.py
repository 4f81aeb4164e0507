"""Mode `scale`: grows and shrinks the workloads of a namespace by the claims of all slots.

Before each write it looks for another manager of the replicas. If there is one, Shoal no longer
writes to the workload, and reports the manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable

from executors.kubernetes import kube_names as names
from executors.kubernetes.claim_waits import ClaimWaits
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.group_ranks import is_worker, leader_of, place_ranks, worker_name
from executors.kubernetes.kube_client import KubeApi, Manifest
from executors.kubernetes.kube_errors import Conflict, KubeError, Temporary
from executors.kubernetes.kube_events import write_event
from executors.kubernetes.kube_kinds import AUTOSCALER, Kind
from executors.kubernetes.leftover_labels import without_claim
from executors.kubernetes.object_cache import UNREADABLE
from executors.kubernetes.pod_fleet import PodFleet, persist
from executors.kubernetes.pod_moves import PodMoves
from executors.kubernetes.pod_template import dump_launch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import (
    PendingWrite,
    ScaleTarget,
    assign_pods,
    next_replicas,
    ordinal_swap,
    other_writer,
    removable,
)
from executors.kubernetes.surplus_pods import LoadOf, SurplusPods
from executors.kubernetes.workload_copies import WorkloadCopies
from executors.kubernetes.workload_view import WorkloadView
from topics.fleet import LaunchCode

log = logging.getLogger(__name__)

_EVERY_S, _PAUSE_S = 0.5, 0.1
_COST_SEEN_S, _COPY_EVERY_S = 0.5, 0.05
_PATIENCE_S = 60.0
_VICTIM_S = 5.0
"""If a pod that should be removed is still alive this many seconds after the write, another pod was
removed."""


class WorkloadScaler:
    """The claims on the workloads in mode `scale`. targets: by title, such as
    "deployments/llama"."""

    def __init__(
        self,
        fleet: PodFleet,
        kinds: Iterable[Kind],
        load_of: LoadOf,
        lag_s: float,
        node_wait_s: Callable[[str], float],
    ) -> None:
        self._fleet = fleet
        self._api: KubeApi = fleet.api
        self.workloads = WorkloadCopies(fleet, kinds, self._wake)
        self.targets: dict[str, ScaleTarget] = {}
        self._written_s: dict[EnginePod, float] = {}
        self._marked_s: dict[EnginePod, float] = {}
        self._stopping_s: dict[EnginePod, float] = {}
        self._waits = ClaimWaits(self._tell)
        self._surplus = SurplusPods(fleet, load_of, lag_s)
        self._moves = PodMoves(fleet, node_wait_s, self._tell)
        self._news = asyncio.Event()

    def start(self) -> None:
        """Begin to follow the workloads and to act on claims."""
        self.workloads.start()
        self._fleet.spawn(self._run())

    def refusal(self, workload: WorkloadView) -> str:
        """The reason why Shoal does not scale `workload`, "" if it does."""
        target = self.targets.get(workload.title)
        return workload.fault or (target.refusal if target else "")

    def claim(self, workload: WorkloadView, engine: EnginePod) -> None:
        """Find a pod of `workload` for `engine`, or make the workload grow. A rank above 0 gets a
        pod of the replica of rank 0."""
        self._accept(workload, engine)
        self._wake()

    def adopt(self, engine: EnginePod, pod: PodView) -> bool:
        """Restore the claim of `engine` on `pod`; False if no workload owns the pod."""
        workload = self.workloads.owner(pod)
        if workload is None:
            return False
        self._accept(workload, engine)
        return True

    def stop(self, engine: EnginePod) -> None:
        """Remove the pod of `engine` by lowering the replicas. A workload with ordinals removes its
        highest one, so the claim on that pod is exchanged with `engine`'s."""
        engine.stopping = True
        if not engine.pod:  # no pod was found yet
            engine.gone = True
        self._wake()

    def release(self, engine: EnginePod) -> None:
        """Forget the claim of an engine that ended."""
        for target in self.targets.values():
            for engines in (target.claims, target.ranks):
                if engine in engines:
                    engines.remove(engine)
            target.leaving.discard(engine)
        self._written_s.pop(engine, None)
        self._marked_s.pop(engine, None)
        self._stopping_s.pop(engine, None)
        self._wake()

    def hand_over(self, engine: EnginePod) -> bool:
        """Move the claim of `engine` to a ready pod of its workload that has no claim; returns
        whether there is one."""
        for workload in self.workloads.managed():
            target = self.targets.get(workload.title)
            if target is not None and engine in target.ranks:
                return self._hand_over_rank(engine, target)
            if target is None or engine not in target.claims:
                continue
            claimed = {one.pod for one in target.claims}
            free = (pod for pod in self.workloads.pods(workload) if pod.serves)
            pod = next((one for one in free if one.name not in claimed), None)
            if pod is not None:
                engine.pod = pod.name
                self._fleet.spawn(self._bind(engine, pod))
            return pod is not None
        return False

    def moves(self, engine: EnginePod) -> bool:
        """Whether the workload of `engine` replaces a pod of it that must leave its node."""
        owners = (one for one in self.targets.values() if engine in one.claims)
        return any(not (target.stuck or target.refusal) for target in owners)

    def swap_ordinals(self, engine: EnginePod) -> bool:
        """Exchange claims so that `engine`, which begins to drain, has the pod that its workload
        removes first. Returns whether claims were exchanged."""
        for workload in self.workloads.managed():
            target = self.targets.get(workload.title)
            if target is None or engine not in target.claims or workload.picks_victim:
                continue
            other = ordinal_swap(engine, target.claims, self.workloads.pods(workload))
            if other is not None:
                log.warning(
                    "%s removes its highest ordinal: pod %s leaves instead of pod %s, which the "
                    "plan chose", workload.title, other.pod, engine.pod,
                )  # fmt: skip
                engine.pod, other.pod = other.pod, engine.pod
                for one in (engine, other):
                    self._fleet.spawn(self._bind(one, self._fleet.pods.objects[one.pod]))
                return True
        return False

    # -- inside -------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._news.set()

    def _accept(self, workload: WorkloadView, engine: EnginePod) -> None:
        target = self._target(workload)
        (target.ranks if is_worker(engine) else target.claims).append(engine)

    def _hand_over_rank(self, rank: EnginePod, target: ScaleTarget) -> bool:
        """Move a rank to the group to which its rank 0 moved or can move."""
        leader = leader_of(rank, target)
        if leader is None:
            return False
        pods = self._fleet.pods.objects
        if rank.pod == worker_name(leader, rank) and not self.hand_over(leader):
            return False
        pod = pods.get(worker_name(leader, rank))
        if pod is None or not pod.serves:
            return False
        rank.pod = pod.name
        self._fleet.spawn(self._bind(rank, pod))
        return True

    def _target(self, workload: WorkloadView) -> ScaleTarget:
        found = self.targets.setdefault(workload.title, ScaleTarget())
        found.place = workload.model, workload.role, workload.pool
        return found

    async def _run(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), _EVERY_S)
            self._news.clear()
            await self.workloads.refresh()
            if not self._fleet.pods.synced:
                continue
            for workload in self.workloads.managed():
                target = self.targets.get(workload.title)
                if target is not None:
                    await self._step_once(workload, target)
            await self._move_orphans()
            for target in self.targets.values():
                for engine, pod in place_ranks(target, self._fleet.pods.objects):
                    await self._bind(engine, pod)
            self._fail_orphans()
            await asyncio.sleep(_PAUSE_S)

    async def _step_once(self, workload: WorkloadView, target: ScaleTarget) -> None:
        try:
            await self._step(workload, target)
            self._fleet.faults.pop(workload.title, None)
        except (KubeError, *UNREADABLE) as error:
            why = f"{workload.title}: {error}; retrying"
            if self._fleet.faults.get(workload.title) != why:
                log.warning("%s", why)
            self._fleet.faults[workload.title] = why

    async def _step(self, workload: WorkloadView, target: ScaleTarget) -> None:
        if target.pending is not None:
            await self._resolve(workload, target, target.pending)
        refusal = target.refusal or workload.fault or other_writer(target, workload)
        if refusal and not (target.refusal or workload.fault):
            # The local copy may be old: only the server's own answer accuses another program.
            refusal = refusal if await self._live_replicas(workload) != target.written else ""
        if refusal:
            await self._refuse(workload, target, refusal)
            return
        pods = self.workloads.pods(workload)
        notices = self._moves.notices(pods, time.monotonic())
        await self._surplus.step(workload, target, pods, notices, time.monotonic())
        pods = self.workloads.pods(workload)  # with the labels of drains that began
        lasting = [pod for pod in pods if not notices.get(pod.name)]
        for engine, pod in assign_pods(target, lasting, notices):
            await self._bind(engine, pod)
        await self._moves.step(workload, target, pods, notices, time.monotonic())
        self._waits.step(workload, target, len(pods), time.monotonic())
        self._check_victims(workload, target, pods)
        removed = self._settled(removable(target, workload, pods, self._is_patient(target)))
        wanted = next_replicas(target, workload, pods, removed, notices)
        if wanted is None:
            return
        found = await self._other_autoscaler(workload)
        if found:
            await self._refuse(workload, target, found)
        elif wanted == workload.replicas:
            # the replicas are at the owner's minimum, so the pod stays without a claim
            for engine in removed:
                engine.gone = True
        else:
            await self._write(workload, target, wanted, removed)

    def _settled(self, engines: list[EnginePod]) -> list[EnginePod]:
        """The engines among `engines` whose deletion cost the controller must have in its own local
        copy by now."""
        now_s = time.monotonic()
        for engine in engines:
            self._marked_s.setdefault(engine, now_s)
        return [e for e in engines if now_s - self._marked_s[e] >= _COST_SEEN_S]

    def _is_patient(self, target: ScaleTarget) -> bool:
        """Whether removals still wait for pods that start. A pod that never gets ready must not
        hold them up for good."""
        now_s = time.monotonic()
        waits = [now_s - self._stopping_s.setdefault(e, now_s) for e in target.stopping]
        return max(waits, default=0.0) < _PATIENCE_S

    async def _write(
        self, workload: WorkloadView, target: ScaleTarget, wanted: int, removed: list[EnginePod]
    ) -> None:
        scale = await self._api.read_scale(workload.kind, workload.name)
        if scale.replicas != workload.replicas:
            return  # the local copy is old: decide again at its next update
        removed = removed[: max(0, workload.replicas - wanted)]
        pending = PendingWrite(workload.replicas, wanted, tuple(removed))
        try:
            await self._api.write_scale(workload.kind, workload.name, wanted, scale.version)
        except Conflict:
            return
        except Temporary:
            # The write may have arrived although its answer was lost: a second one would remove a
            # second pod.
            target.pending = pending
            raise
        self._commit(workload, target, pending)
        await self._await_copy(workload, wanted)

    async def _resolve(
        self, workload: WorkloadView, target: ScaleTarget, pending: PendingWrite
    ) -> None:
        """Find out whether a write arrived whose answer was lost."""
        live = await self._live_replicas(workload)
        target.pending = None
        if live == pending.wanted:
            self._commit(workload, target, pending)

    def _commit(self, workload: WorkloadView, target: ScaleTarget, done: PendingWrite) -> None:
        target.leaving.update(done.removed)
        for engine in done.removed:
            self._written_s[engine] = time.monotonic()
        target.written = done.wanted
        target.raised = max(0, target.raised + done.wanted - done.before)
        log.info("%s: %d replicas, was %d", workload.title, done.wanted, done.before)

    async def _live_replicas(self, workload: WorkloadView) -> int:
        """The replicas that the server has now; waits while it is away."""
        kind, name = workload.kind, workload.name
        scale = await persist(lambda: self._api.read_scale(kind, name), f"{workload.title}/scale")
        return scale.replicas

    async def _await_copy(self, workload: WorkloadView, wanted: int) -> None:
        """Wait until the local copy shows the write, so that it is not mistaken for another
        program's."""
        for _ in range(100):
            await self.workloads.refresh()
            current = next(
                (one for one in self.workloads.managed() if one.title == workload.title), None
            )
            if current is None or current.replicas != workload.replicas:
                return
            await asyncio.sleep(_COPY_EVERY_S)

    async def _bind(self, engine: EnginePod, pod: PodView) -> None:
        """Record the claim on the pod, for the next executor."""
        launch = engine.launch
        labels = {
            names.INSTANCE: names.label_value(launch.desired.instance),
            names.GROUP: names.label_value(launch.desired.group),
        }
        notes = {names.LAUNCH: dump_launch(launch), names.DELETION_COST: None}
        change: Manifest = {"metadata": {"labels": labels, "annotations": notes}}
        if await self._fleet.patch_pod(pod.name, change):
            engine.pod, engine.created = pod.name, True

    def _check_victims(
        self, workload: WorkloadView, target: ScaleTarget, pods: list[PodView]
    ) -> None:
        """Detect that another pod than the chosen one was removed. The chosen pod then stays,
        without a claim."""
        now_s = time.monotonic()
        alive = {pod.name for pod in pods if not (pod.terminating or pod.over)}
        for engine in list(target.leaving):
            waited_s = now_s - self._written_s.get(engine, now_s)
            settled = len(alive) <= workload.replicas
            if engine.pod in alive and settled and waited_s > _VICTIM_S:
                text = f"another pod than {engine.pod} left, which stays and serves again"
                log.warning("%s: %s", workload.title, text)
                self._tell(workload, "OtherVictim", text)
                target.leaving.discard(engine)
                engine.gone = True

    async def _other_autoscaler(self, workload: WorkloadView) -> str:
        """The reason why a HorizontalPodAutoscaler forbids a write, "" if none does."""
        listing = await self._api.list_objects(AUTOSCALER)
        for raw in listing.objects:
            ref = (raw.get("spec") or {}).get("scaleTargetRef") or {}
            if (ref.get("kind"), ref.get("name")) == (workload.kind.kind, workload.name):
                return (
                    f"HorizontalPodAutoscaler {raw['metadata']['name']} scales {workload.title}; "
                    "Shoal does not"
                )
        return ""

    async def _refuse(self, workload: WorkloadView, target: ScaleTarget, why: str) -> None:
        """End all claims that need a write. Claims with a pod keep serving."""
        if not target.refusal:
            log.error("%s: not scaled: %s", workload.title, why)
            self._tell(workload, "NotScaled", why)
        target.refusal = why
        for engine in target.waiting:
            engine.fail(LaunchCode.NOT_SCALED, why)
        for engine in target.claims:
            engine.gone = engine.gone or engine.stopping

    def _orphaned(self) -> dict[str, ScaleTarget]:
        """The targets of workloads that no longer exist or are no longer opted in."""
        known = {workload.title for workload in self.workloads.managed()}
        return {title: one for title, one in self.targets.items() if title not in known}

    async def _move_orphans(self) -> None:
        """Move the claims of such workloads to the workload that is opted in for the same model,
        role and pool. A claim moves as soon as a pod there is ready, so no capacity is lost."""
        for title, target in self._orphaned().items():
            workload = self.workloads.find(*target.place)
            if workload is None or self.refusal(workload):
                continue
            theirs = self._target(workload)
            claimed = {engine.pod for engine in theirs.claims}
            free = (
                pod
                for pod in self.workloads.pods(workload)
                if pod.serves and pod.name not in claimed
            )
            for engine in [one for one in target.claims if not one.stopping]:
                former, pod = engine.pod, next(free, None) if engine.pod else None
                if pod is not None:
                    await self._bind(engine, pod)
                is_moved = not former or (pod is not None and engine.pod == pod.name)
                if is_moved and engine in target.claims:
                    log.info("%s takes over %s from %s", workload.title, former or "a claim", title)
                    ranks = [one for one in target.ranks if leader_of(one, target) is engine]
                    target.ranks = [one for one in target.ranks if one not in ranks]
                    target.claims.remove(engine)
                    theirs.claims.append(engine)
                    theirs.ranks += ranks
                    if former:
                        await self._fleet.patch_pod(former, {"metadata": without_claim({})})

    def _fail_orphans(self) -> None:
        """End the claims of such workloads that have no pod, or that stop. The plan must replace
        the others if they must leave their nodes."""
        for title, target in self._orphaned().items():
            target.stuck = f"{title} is no longer managed"
            for engine in target.waiting:
                engine.fail(LaunchCode.NOT_SCALED, target.stuck)
            for engine in target.stopping:
                engine.gone = True
            if not (target.claims or target.ranks):
                del self.targets[title]

    def _tell(self, workload: WorkloadView, reason: str, text: str) -> None:
        """Write a Warning on the workload, so that its owner sees it."""
        about = (workload.kind, workload.name, "")
        self._fleet.spawn(write_event(self._api, about, reason, text))
