"""Mode `scale`: moves instances off pods that must leave their nodes.

The workload first grows. Each claim on such a pod moves to a pod elsewhere once that pod serves;
the former pod then drains (`SurplusPods`). The plan only hears of pods that cannot be replaced so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from executors.kubernetes import kube_names as names
from executors.kubernetes.claim_waits import Tell
from executors.kubernetes.engine_pod import NO_NODE_S, EnginePod
from executors.kubernetes.notices import notice_s
from executors.kubernetes.pod_fleet import PodFleet
from executors.kubernetes.pod_template import dump_launch
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.scale_target import ScaleTarget, displaced, unclaimed
from executors.kubernetes.workload_view import WorkloadView

log = logging.getLogger(__name__)

Notices = Mapping[str, bool]
"""By name of a pod that must leave: whether half of its notice has passed. It leaves then, even if
nothing replaces it, so that its requests can finish."""

_KEPT = (names.SLOT, names.INSTANCE, names.GROUP, names.ROLE, names.SERVING)


class PodMoves:
    """The moves of all workloads. node_wait_s: function that returns the time for which a pod of a
    pool waits for a new node, in seconds."""

    def __init__(self, fleet: PodFleet, node_wait_s: Callable[[str], float], tell: Tell) -> None:
        self._fleet = fleet
        self._node_wait_s = node_wait_s
        self._tell = tell
        self._since_s: dict[str, float] = {}
        self._unplaced_s: dict[str, float] = {}

    def notices(self, pods: Iterable[PodView], now_s: float) -> Notices:
        """The notices to `pods`. now_s: monotonic."""
        found = {}
        for pod in pods:
            over = pod.terminating or pod.over
            limit_s = None if over else notice_s(pod, self._fleet.node_of(pod))
            if limit_s is None:
                self._since_s.pop(pod.name, None)
            else:
                since_s = self._since_s.setdefault(pod.name, now_s)
                found[pod.name] = now_s - since_s >= limit_s / 2
        for name in [name for name in self._since_s if name not in self._fleet.pods.objects]:
            del self._since_s[name]
        return found

    async def step(
        self,
        workload: WorkloadView,
        target: ScaleTarget,
        pods: list[PodView],
        notices: Notices,
        now_s: float,
    ) -> None:
        """Move claims from pods that must leave to pods that serve elsewhere. A claim that found
        none until half of the notice has passed ends, so that its pod drains. now_s: monotonic."""
        free = [pod for pod in unclaimed(target, pods) if pod.serves and pod.name not in notices]
        for (engine, former), pod in zip(displaced(target, pods, notices), free, strict=False):
            await move_claim(self._fleet, engine, former, pod)
        for engine, pod in displaced(target, pods, notices):
            if notices[pod.name]:
                engine.gone, engine.lost = True, self._reason(pod)
        why = self._obstacle(workload, target, pods, notices, now_s)
        if why and not target.stuck:
            text = f"pods on nodes that must be emptied are not replaced: {why}"
            log.warning("%s: %s", workload.title, text)
            self._tell(workload, "NotMoved", text)
        target.stuck = why
        no_room = bool(self._no_room(workload, unclaimed(target, pods), now_s))
        target.no_surge = workload.rollout.active and (target.no_surge or no_room)

    # -- inside -------------------------------------------------------------------------------

    def _obstacle(
        self,
        workload: WorkloadView,
        target: ScaleTarget,
        pods: list[PodView],
        notices: Notices,
        now_s: float,
    ) -> str:
        """The reason why claims on pods that must leave get no other pod, "" = they do. It holds
        until no claim is on such a pod."""
        leaving = displaced(target, pods, notices)
        if not leaving:
            return ""
        if target.stuck:
            return target.stuck
        if not workload.moves:
            return f"it cannot replace single pods of {workload.kind.plural}"
        free = [pod for pod in unclaimed(target, pods) if pod.name not in notices]
        if len(free) < len(leaving) and workload.replicas >= workload.most:
            return f"{names.MAX} of {workload.title} is {workload.most}"
        return self._no_room(workload, free, now_s)

    def _no_room(self, workload: WorkloadView, free: Iterable[PodView], now_s: float) -> str:
        """The reason why pods without a claim have lacked a node for too long, "" = they do not."""
        unplaced = (pod.unschedulable for pod in free if pod.unschedulable and not pod.nominated)
        why = next(unplaced, workload.blocked)
        if not why:
            self._unplaced_s.pop(workload.title, None)
            return ""
        since_s = self._unplaced_s.setdefault(workload.title, now_s)
        return why if now_s - since_s >= max(NO_NODE_S, self._node_wait_s(workload.pool)) else ""

    def _reason(self, pod: PodView) -> str:
        """The text of the notice to `pod`."""
        node = self._fleet.node_of(pod)
        return pod.disruption or f"its node is reclaimed: {node.notice if node else 'unknown'}"


async def move_claim(fleet: PodFleet, engine: EnginePod, former: PodView, pod: PodView) -> None:
    """Exchange the pod of `engine`. The next pod is in the routes before the former one leaves
    them."""
    labels = {key: former.labels[key] for key in _KEPT if key in former.labels}
    notes = {names.LAUNCH: dump_launch(engine.launch), names.DELETION_COST: None}
    if await fleet.mark_pod(pod.name, {"labels": labels, "annotations": notes}):
        name = engine.launch.desired.instance
        log.info("%s moves from pod %s to %s", name, former.name, pod.name)
        engine.pod = pod.name
