"""The workload that owns a pod. Pure.

The chain of controllers decides, as in the strategy OwnerReferences of the HorizontalPodAutoscaler:
pod, ReplicaSet, Deployment. Labels alone prove nothing, because a pod of a Job may have the labels
of an engine. Only a kind with `/scale` that Shoal does not know may have pods whose chain does not
lead to it; their labels must match the selector of `/scale`.
"""

from __future__ import annotations

from collections.abc import Iterable

from executors.kubernetes.label_selector import parse_selector
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.workload_view import WorkloadView

_LONGEST_CHAIN = 8
_BUILT_IN = frozenset({"", "apps", "batch"})
"""API groups whose controllers make no pods for objects of other kinds."""


class PodOwners:
    """Finds the owners of pods. workloads: all workloads of the namespace, because one that Shoal
    does not scale may lie between a pod and its owner."""

    def __init__(self, workloads: Iterable[WorkloadView]) -> None:
        self._by_ref = {one.ref: one for one in workloads}
        self._selected = [
            (one, parse_selector(one.selector))
            for one in self._by_ref.values()
            if one.managed and one.selector
        ]

    def owner(self, pod: PodView) -> WorkloadView | None:
        """The workload in mode `scale` that owns `pod`, None = no such workload."""
        ref = pod.controller
        for _ in range(_LONGEST_CHAIN):
            known = self._by_ref.get(ref) if ref is not None else None
            if known is None:
                break
            if known.managed:
                return known
            ref = known.controller
        return None if ref is not None and ref[0] in _BUILT_IN else self._by_selector(pod)

    def leader(self, pod: PodView) -> str:
        """The name of the pod that made the controller of `pod`, as the leader of a group of a
        LeaderWorkerSet does; "" = no such pod."""
        known = self._by_ref.get(pod.controller) if pod.controller is not None else None
        made_by = known.controller if known is not None else None
        return made_by[2] if made_by is not None and made_by[:2] == ("", "Pod") else ""

    def _by_selector(self, pod: PodView) -> WorkloadView | None:
        for workload, requirements in self._selected:
            if all(one.matches(pod.labels) for one in requirements):
                return workload
        return None
