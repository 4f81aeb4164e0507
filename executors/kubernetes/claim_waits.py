"""Mode `scale`: the reasons why claims have no pod yet, and the claims that get none. Pure except
for the function that tells the workload's owner."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod, Wait
from executors.kubernetes.scale_target import ScaleTarget, above_maximum
from executors.kubernetes.workload_view import WorkloadView
from topics.fleet import LaunchCode

_BLOCKED_S = 3.0  # a controller repeats what failed, such as while a webhook restarts

Tell = Callable[[WorkloadView, str, str], None]
"""Function that writes an Event on a workload: its reason, and its text."""


class ClaimWaits:
    """Explains the waits of all workloads."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._blocked: dict[str, tuple[int, float]] = {}
        """Number of pods, and the time since which there is none more, by workload."""

    def step(self, workload: WorkloadView, target: ScaleTarget, pods: int, now_s: float) -> None:
        """Give up the claims that cannot get a pod, and note why the others wait. pods: number of
        pods of the workload. now_s: monotonic."""
        why = f"{names.MAX} of {workload.title} is {workload.most}"
        self._fail(workload, above_maximum(target, workload), LaunchCode.AT_MAXIMUM, why)
        if self._is_blocked(workload, target, pods, now_s):
            why = f"{workload.title} gets no pods: {workload.blocked}"
            self._fail(workload, target.waiting, LaunchCode.NO_PODS, why, pool_fails=True)
        text = f"{workload.title} has {pods} of {workload.replicas} pods, and none is free"
        for engine in target.waiting:
            engine.held_up = Wait(LaunchCode.NO_PODS, f"{text} {workload.blocked}".strip())

    def _is_blocked(
        self, workload: WorkloadView, target: ScaleTarget, pods: int, now_s: float
    ) -> bool:
        """Whether the controller of `workload` has failed to make pods, and made none, for a
        while."""
        if not (target.waiting and workload.blocked):
            self._blocked.pop(workload.title, None)
            return False
        former, since_s = self._blocked.get(workload.title, (pods, now_s))
        since_s = now_s if pods > former else since_s
        self._blocked[workload.title] = pods, since_s
        return now_s - since_s >= _BLOCKED_S

    def _fail(
        self, workload: WorkloadView, engines: Iterable[EnginePod], code: LaunchCode, why: str,
        pool_fails: bool = False,
    ) -> None:  # fmt: skip
        new = [engine for engine in engines if engine.failure is None]
        for engine in new:
            engine.fail(code, why, pool_fails)
        if new:
            self._tell(workload, code, why)
