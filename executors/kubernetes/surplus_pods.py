"""Mode `scale`: pods that no instance of the plan claims, such as those of a workload that Shoal
took over with more replicas than the plan needs.

They continue to serve until the plan's own instances have been ready for a while. Then they leave
the routes, drain and are removed, one at a time. Those that must leave their nodes do so at once
and together. An instance that needs a pod gets one of them at once. A StatefulSet can only lose its
highest ordinal: an instance on it moves, and a lower pod that must leave waits for its eviction.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from executors.kubernetes import kube_names as names
from executors.kubernetes.drain_gate import MOVED_LAG_S, DrainGate
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_moves import move_claim
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import (
    DRAINS_COST,
    LEAVES_COST,
    ScaleTarget,
    ordinal,
    unclaimed,
)
from executors.kubernetes.workload_view import WorkloadView
from topics.fleet import DesiredInstance

log = logging.getLogger(__name__)

LoadOf = Callable[[WorkloadView, PodView], Awaitable[int | None]]
"""Function that returns the number of requests in flight on a pod; None = unknown."""

_SETTLED_S, _DEADLINE_S = 60.0, 600.0
_SLOT = "surplus"
"""Value of the label `kube_names.SLOT` while a pod drains: a disruption budget selects the label,
and no slot has this name."""

_FREE = {names.SLOT: None}


@dataclass(slots=True)
class _Drain:
    """The drain of one surplus pod. title: of its workload. uid: that of the pod, because a
    StatefulSet makes another pod of the same name. begun_s: start of the drain, in monotonic
    seconds."""

    title: str
    uid: str
    engine: EnginePod
    begun_s: float
    gate: DrainGate = field(default_factory=DrainGate)


class SurplusPods:
    """The surplus pods of all workloads. lag_s: until routers have seen a pod's label."""

    def __init__(self, fleet: PodFleet, load_of: LoadOf, lag_s: float) -> None:
        self._fleet = fleet
        self._load_of = load_of
        self._lag_s = lag_s
        self._drains: dict[str, _Drain] = {}
        self._settled_s: dict[str, float] = {}

    async def step(
        self,
        workload: WorkloadView,
        target: ScaleTarget,
        pods: list[PodView],
        notices: Mapping[str, bool],
        now_s: float,
    ) -> None:
        """Begin or continue the drains of pods of `workload`. notices: by name of a pod that must
        leave, whether it can wait no longer. now_s: monotonic."""
        drains = [drain for drain in self._drains.values() if drain.title == workload.title]
        for drain in drains:
            can_leave = workload.picks_victim or drain.engine.pod == _highest(pods)
            must_leave = drain.engine.pod in notices
            await self._continue(workload, target, drain, must_leave, can_leave, now_s)
        for one in _must_leave(workload, target, pods, notices):
            await self._begin(workload, target, one, now_s)
        if drains:
            return
        if workload.rollout.active or not _is_settled(target, pods):
            self._settled_s.pop(workload.title, None)
            return
        since_s = self._settled_s.setdefault(workload.title, now_s)
        pod = _candidate(workload, target, pods)
        if pod is not None and now_s - since_s >= _SETTLED_S:
            free = (one for one in unclaimed(target, pods) if one.serves)
            for engine in [one for one in target.claims if one.pod == pod.name]:
                await move_claim(self._fleet, engine, pod, next(free))
            await self._begin(workload, target, pod, now_s)

    # -- inside -------------------------------------------------------------------------------

    async def _begin(
        self, workload: WorkloadView, target: ScaleTarget, pod: PodView, now_s: float
    ) -> None:
        if not await self._mark(pod.name, "draining", DRAINS_COST):
            return
        extra_s = MOVED_LAG_S if names.INSTANCE in pod.labels else 0.0
        log.info("%s: draining pod %s, which is not in the plan", workload.title, pod.name)
        instance = f"surplus-{pod.name}"
        desired = DesiredInstance(instance, workload.model, workload.role, "surplus:1", (0,))
        engine = EnginePod(PodLaunch(desired, 0, (workload.port,), 0), pod.name, created=True)
        target.claims.append(engine)
        gate = DrainGate(unrouted_s=now_s, extra_lag_s=extra_s)
        self._drains[pod.name] = _Drain(workload.title, pod.uid, engine, now_s, gate)

    async def _continue(
        self,
        workload: WorkloadView,
        target: ScaleTarget,
        drain: _Drain,
        must_leave: bool,
        can_leave: bool,
        now_s: float,
    ) -> None:
        engine = drain.engine
        pod = self._fleet.pods.objects.get(engine.pod)
        gone = pod is None or pod.uid != drain.uid or pod.over
        if pod is None or gone or (pod.terminating and not engine.stopping):
            self._end(workload, target, engine)
            return
        late = now_s - drain.begun_s > _DEADLINE_S
        returns = not must_leave and (late or bool(target.waiting))
        if engine.gone or (returns and not engine.stopping):
            self._end(workload, target, engine)
            await self._mark(engine.pod, "true", None)
        elif not engine.stopping:
            load = await self._load_of(workload, pod) if pod.ready else 0
            idle = load is not None and drain.gate.is_idle(load, self._lag_s, now_s)
            if idle and not can_leave:
                if names.SLOT in pod.labels:  # from now on, the pod may be evicted
                    await self._fleet.patch_pod(pod.name, {"metadata": {"labels": _FREE}})
            elif idle and await self._mark(engine.pod, "draining", LEAVES_COST):
                engine.stopping = True

    def _end(self, workload: WorkloadView, target: ScaleTarget, engine: EnginePod) -> None:
        del self._drains[engine.pod]
        self._settled_s.pop(workload.title, None)
        target.leaving.discard(engine)
        if engine in target.claims:
            target.claims.remove(engine)

    async def _mark(self, pod: str, serving: str, cost: str | None) -> bool:
        slot = _SLOT if cost else None
        labels = {names.SERVING: serving, names.SLOT: slot, names.INSTANCE: None, names.GROUP: None}
        notes = {names.DELETION_COST: cost, names.LAUNCH: None}
        return await self._fleet.mark_pod(pod, {"labels": labels, "annotations": notes})


def _is_settled(target: ScaleTarget, pods: list[PodView]) -> bool:
    """Whether all instances of the plan have a ready pod, and no pod is starting or leaving."""
    ready = {pod.name for pod in pods if pod.serves}
    claims = target.claims
    still = not (target.waiting or target.stopping or target.leaving or target.refusal)
    return bool(claims) and still and all(engine.pod in ready for engine in claims)


def _must_leave(
    workload: WorkloadView, target: ScaleTarget, pods: list[PodView], notices: Mapping[str, bool]
) -> list[PodView]:
    """The pods without a claim that must leave. While an instance waits for a pod, only those that
    can wait no longer."""
    if not workload.moves:
        return []
    found = [pod for pod in unclaimed(target, pods) if pod.serves and pod.name in notices]
    return [pod for pod in found if notices[pod.name] or not target.waiting]


def _candidate(workload: WorkloadView, target: ScaleTarget, pods: list[PodView]) -> PodView | None:
    """The pod that leaves in place of a ready pod without a claim: the youngest of them, or the
    highest ordinal. None if there is none, or if the owner's minimum forbids a removal."""
    free = [pod for pod in unclaimed(target, pods) if pod.serves]
    if not (free and workload.moves) or workload.replicas <= workload.least:
        return None
    if workload.picks_victim:
        return max(free, key=lambda pod: (pod.created_s, pod.name))
    return next((pod for pod in pods if pod.name == _highest(pods)), None)


def _highest(pods: list[PodView]) -> str:
    """The name of the pod with the highest ordinal."""
    living = (pod.name for pod in pods if not (pod.terminating or pod.over))
    return max(living, key=ordinal, default="")
