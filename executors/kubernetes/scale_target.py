"""One workload in mode `scale`: the assignment of its pods to instances, and the next write of its
replicas. Pure. A claim connects an instance to a pod. A new claim gets a pod without a claim; the
workload grows only if there is none. A claim that stops makes the workload shrink by one. A claim
on a pod that must leave its node makes the workload grow, and moves to another pod that serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from executors.kubernetes import kube_names as names
from executors.kubernetes.engine_pod import EnginePod
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.workload_view import WorkloadView
from topics.fleet import InstanceState

LEAVES_COST, DRAINS_COST = "-2000000", "-1000000"
"""Deletion costs, by which an idle pod is removed before a draining pod, and both before all
others."""


@dataclass(frozen=True, slots=True)
class PendingWrite:
    """A write whose outcome is unknown. before, wanted: replicas. removed: claims it removes."""

    before: int
    wanted: int
    removed: tuple[EnginePod, ...]


@dataclass(slots=True)
class ScaleTarget:
    """The claims on one workload.

    claims: engines, with or without a pod. raised: number of replicas that Shoal added and that may
    still lack a node. written: the replicas of Shoal's last write, None = no write yet. leaving:
    stopped engines whose removal was written. refusal: the reason why Shoal no longer scales the
    workload, "" = it does. pending: the last write, if its answer was lost. place: model, role and
    pool of the workload. ranks: engines of ranks above 0, whose replica rank 0 claims. stuck:
    the reason why claims on pods that must leave get no other pod, "" = they do. no_surge: whether
    the replicas that Shoal adds for the present rollout found no node.
    """

    claims: list[EnginePod] = field(default_factory=list)
    leaving: set[EnginePod] = field(default_factory=set)
    raised: int = 0
    written: int | None = None
    refusal: str = ""
    pending: PendingWrite | None = None
    place: tuple[str, str, str] = ("", "", "")
    ranks: list[EnginePod] = field(default_factory=list)
    stuck: str = ""
    no_surge: bool = False

    @property
    def waiting(self) -> list[EnginePod]:
        """Claims without a pod."""
        return [engine for engine in self.claims if not engine.pod and not engine.stopping]

    @property
    def stopping(self) -> list[EnginePod]:
        """Claims that stop and whose removal is not written yet."""
        return [e for e in self.claims if e.stopping and e not in self.leaving and not e.gone]


def assign_pods(
    target: ScaleTarget, pods: Iterable[PodView], avoid: Collection[str] = ()
) -> list[tuple[EnginePod, PodView]]:
    """Pods for the waiting claims: ready ones first, then the oldest. avoid: names of pods that are
    taken only if no other is left."""
    free = unclaimed(target, pods)
    free.sort(key=lambda pod: (pod.name in avoid, not pod.ready, pod.created_s, pod.name))
    return list(zip(target.waiting, free, strict=False))


def unclaimed(target: ScaleTarget, pods: Iterable[PodView]) -> list[PodView]:
    """The living pods without a claim."""
    claimed = {engine.pod for engine in target.claims}
    return [one for one in pods if one.name not in claimed and not (one.terminating or one.over)]


def displaced(
    target: ScaleTarget, pods: Iterable[PodView], noticed: Collection[str]
) -> list[tuple[EnginePod, PodView]]:
    """The claims on pods in `noticed`, which must leave, with these pods. Not those that drain."""
    stay = {pod.name: pod for pod in pods if pod.labels.get(names.SERVING) != "draining"}
    claims = (engine for engine in target.claims if not (engine.stopping or engine.gone))
    return [(one, stay[one.pod]) for one in claims if one.pod in noticed and one.pod in stay]


def deletion_cost(state: InstanceState) -> str | None:
    """The deletion cost of the pod of an instance in `state`; None = no annotation."""
    if state is InstanceState.DRAINING:
        return DRAINS_COST
    return LEAVES_COST if state is InstanceState.STOPPING else None


def removable(
    target: ScaleTarget, workload: WorkloadView, pods: Collection[PodView], patient: bool = True
) -> list[EnginePod]:
    """The claims whose pods the next removal would take, because they have the lowest cost.

    patient: none is removable while a pod of a Deployment starts, because a ReplicaSet removes pods
    that are not ready first, whatever their cost.
    """
    if not workload.picks_victim:
        return target.stopping
    if patient and any(pod.node and not (pod.ready or pod.terminating or pod.over) for pod in pods):
        return []
    marked = {p.name for p in pods if p.annotations.get(names.DELETION_COST) == LEAVES_COST}
    return [engine for engine in target.stopping if engine.pod in marked]


def next_replicas(
    target: ScaleTarget,
    workload: WorkloadView,
    pods: Collection[PodView],
    removed: Collection[EnginePod],
    noticed: Collection[str] = (),
) -> int | None:
    """The number of replicas to write; None if the present number is right. pods: pods of the
    workload. removed: claims that this write removes. noticed: names of pods that must leave.

    Growth counts every claim, because each needs a pod of its own. A pod that is alive although its
    removal was written may become free for a claim, so growth waits for it. A removal lowers the
    replicas by the number of stopping engines, which are idle by then. Replicas that Shoal added
    are removed again if they found no node and no claim needs them any more. A rollout that lets
    pods be missing gets as many more, so that each claim has one.
    """
    claimed = {engine.pod for engine in target.claims}
    living = [pod for pod in pods if not (pod.terminating or pod.over)]
    if removed:
        return max(workload.least, workload.replicas - len(removed))
    missing = len(target.waiting)
    if not target.stuck:
        elsewhere = [pod for pod in unclaimed(target, pods) if pod.name not in noticed]
        missing += max(0, len(displaced(target, pods, noticed)) - len(elsewhere))
    surge = 0
    if workload.rollout.active and not target.no_surge:
        held = [e for e in target.claims if not (e.stopping or e.gone)]
        surge = min(workload.most, workload.rollout.replicas_for(len(held)))
    if not (missing or surge):
        unused = _unplaced(workload, living, claimed)
        if workload.blocked:
            unused += max(0, workload.replicas - len(living))
        back = min(unused, target.raised, workload.replicas - workload.least)
        return workload.replicas - back if back > 0 else None
    alive = {pod.name for pod in living}
    given_up = [e for e in target.claims if e in target.leaving or e.gone]
    spare = sum(engine.pod in alive for engine in given_up)
    wanted = max(surge, min(workload.most, len(living) + missing - spare) if missing else 0)
    return wanted if wanted > workload.replicas else None


def _unplaced(workload: WorkloadView, living: list[PodView], claimed: Collection[str]) -> int:
    """The number of pods without node and claim that the workload would remove first."""
    useless = [bool(pod.unschedulable) and pod.name not in claimed for pod in living]
    if workload.picks_victim:
        return sum(useless)  # a ReplicaSet removes pods without a node first
    by_ordinal = sorted(zip(living, useless, strict=True), key=lambda one: -ordinal(one[0].name))
    return sum(1 for _ in itertools.takewhile(lambda one: one[1], by_ordinal))


def above_maximum(target: ScaleTarget, workload: WorkloadView) -> list[EnginePod]:
    """The waiting claims that the owner's maximum leaves without a pod, the latest ones."""
    held = [e for e in target.claims if e.pod and not (e.stopping or e.gone)]
    room = max(0, workload.most - len(held))
    return target.waiting[room:]


def other_writer(target: ScaleTarget, workload: WorkloadView) -> str:
    """Text that names another program that sets the replicas, "" if there is none. It is detected
    if the replicas differ from Shoal's last write."""
    if target.written is None or workload.replicas == target.written:
        return ""
    manager = workload.last_writer or "another client"
    return (
        f"{manager} set {workload.title} to {workload.replicas} replicas after Shoal wrote "
        f"{target.written}; Shoal does not scale it any more"
    )


def ordinal_swap(
    leaving: EnginePod, claims: Iterable[EnginePod], pods: Iterable[PodView]
) -> EnginePod | None:
    """The claim that holds the pod of the highest ordinal, if it is not `leaving` itself."""
    ordinals = {pod.name: ordinal(pod.name) for pod in pods}
    held = [engine for engine in claims if engine.pod in ordinals]
    last = max(held, key=lambda engine: ordinals[engine.pod], default=None)
    return last if last is not None and last is not leaving and not last.stopping else None


def ordinal(name: str) -> int:
    """The number at the end of a pod's name, -1 if there is none."""
    digits = name.rpartition("-")[2]
    return int(digits) if digits.isascii() and digits.isdigit() else -1
