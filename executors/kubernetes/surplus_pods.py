"""Mode `scale`: pods that no instance of the plan claims, such as those of a workload that Shoal
took over with more replicas than the plan needs.

They continue to serve until the plan's own instances have been ready for a while. Then they leave
the routes, drain and are removed, one at a time. An instance that needs a pod gets one of them at
once.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from executors.kubernetes import kube_names as names
from executors.kubernetes.drain_gate import DrainGate
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import DRAINS_COST, LEAVES_COST, ScaleTarget
from executors.kubernetes.workload_view import WorkloadView
from topics.fleet import DesiredInstance

log = logging.getLogger(__name__)

LoadOf = Callable[[WorkloadView, PodView], Awaitable[int | None]]
"""Function that returns the number of requests in flight on a pod; None = unknown."""

_SETTLED_S, _DEADLINE_S = 60.0, 600.0


@dataclass(slots=True)
class _Drain:
    """The drain of one surplus pod. begun_s: start of the drain, in monotonic seconds."""

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
        self, workload: WorkloadView, target: ScaleTarget, pods: list[PodView], now_s: float
    ) -> None:
        """Begin or continue the drain of one pod of `workload`. now_s: monotonic."""
        drain = self._drains.get(workload.title)
        if drain is not None:
            await self._continue(workload, target, drain, now_s)
            return
        if not _is_settled(target, pods):
            self._settled_s.pop(workload.title, None)
            return
        since_s = self._settled_s.setdefault(workload.title, now_s)
        pod = _candidate(workload, target, pods)
        if pod is not None and now_s - since_s >= _SETTLED_S:
            await self._begin(workload, target, pod, now_s)

    # -- inside -------------------------------------------------------------------------------

    async def _begin(
        self, workload: WorkloadView, target: ScaleTarget, pod: PodView, now_s: float
    ) -> None:
        if not await self._mark(pod.name, "draining", DRAINS_COST):
            return
        log.info("%s: draining pod %s, which is not in the plan", workload.title, pod.name)
        instance = f"surplus-{pod.name}"
        desired = DesiredInstance(instance, workload.model, workload.role, "surplus:1", (0,))
        engine = EnginePod(PodLaunch(desired, 0, (workload.port,), 0), pod.name, created=True)
        target.claims.append(engine)
        self._drains[workload.title] = _Drain(engine, now_s, DrainGate(unrouted_s=now_s))

    async def _continue(
        self, workload: WorkloadView, target: ScaleTarget, drain: _Drain, now_s: float
    ) -> None:
        engine = drain.engine
        pod = self._fleet.pods.objects.get(engine.pod)
        if pod is None or pod.over:
            self._end(workload, target, engine)
            return
        late = now_s - drain.begun_s > _DEADLINE_S
        needed = bool(target.waiting) and not engine.stopping
        if engine.gone or needed or (late and not engine.stopping):
            self._end(workload, target, engine)
            await self._mark(engine.pod, "true", None)
        elif not engine.stopping:
            load = await self._load_of(workload, pod) if pod.ready else 0
            idle = load is not None and drain.gate.is_idle(load, self._lag_s, now_s)
            if idle and await self._mark(engine.pod, "draining", LEAVES_COST):
                engine.stopping = True

    def _end(self, workload: WorkloadView, target: ScaleTarget, engine: EnginePod) -> None:
        del self._drains[workload.title]
        self._settled_s.pop(workload.title, None)
        target.leaving.discard(engine)
        if engine in target.claims:
            target.claims.remove(engine)

    async def _mark(self, pod: str, serving: str, cost: str | None) -> bool:
        change = {"labels": {names.SERVING: serving}, "annotations": {names.DELETION_COST: cost}}
        return await self._fleet.patch_pod(pod, {"metadata": change})


def _is_settled(target: ScaleTarget, pods: list[PodView]) -> bool:
    """Whether all instances of the plan have a ready pod, and no pod is starting or leaving."""
    ready = {pod.name for pod in pods if pod.serves}
    claims = target.claims
    still = not (target.waiting or target.stopping or target.leaving or target.refusal)
    return bool(claims) and still and all(engine.pod in ready for engine in claims)


def _candidate(workload: WorkloadView, target: ScaleTarget, pods: list[PodView]) -> PodView | None:
    """The youngest ready pod without a claim; None if the owner's minimum forbids a removal, or if
    the workload removes by ordinal, where another pod would leave."""
    if not workload.picks_victim or workload.replicas <= workload.least:
        return None
    claimed = {engine.pod for engine in target.claims}
    free = [pod for pod in pods if pod.serves and pod.name not in claimed]
    return max(free, key=lambda pod: (pod.created_s, pod.name), default=None)
