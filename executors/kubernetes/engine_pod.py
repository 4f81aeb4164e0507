"""The engine of one instance as a pod, and the conditions under which it counts as ended. Pure. A
pod that ended, was deleted, or can never start is reported as an ended engine with a reason. While
the API server is away, pods count as alive.
"""

from __future__ import annotations

from dataclasses import dataclass

from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView

NO_NODE_S = 2.0
"""A pod is given up if it has no node after this time in seconds, unless an autoscaler adds nodes
to the pool."""


@dataclass(slots=True, eq=False)
class EnginePod:
    """One launch. pod: name of the pod, "" until it is known.

    created: whether the server confirmed the pod. gone: whether the server confirmed that no such
    pod exists. failure: the reason why no pod was created. hopeless: whether another attempt would
    fail too. stopping: whether this executor stops the pod. waiting_s: time since which the
    scheduler finds no node, 0 = it does not report that. pool_full: whether a quota
    refused the pod.
    """

    launch: PodLaunch
    pod: str = ""
    created: bool = False
    gone: bool = False
    failure: str = ""
    hopeless: bool = False
    stopping: bool = False
    waiting_s: float = 0.0
    pool_full: bool = False


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The reason why an engine has ended. remove: whether its pod still exists and must be
    deleted. pool_full: whether no node, or no quota, had room for the pod."""

    reason: str
    hopeless: bool = False
    remove: bool = False
    pool_full: bool = False


def end_of(
    engine: EnginePod, pod: PodView | None, now_s: float, node_wait_s: float, supply_fault: str = ""
) -> PodEnd | None:
    """The reason why `engine` has ended, None if it is alive. now_s: monotonic time. pod: its pod
    in the local copy. node_wait_s: time for which a pod of the pool waits for a new node.
    supply_fault: the reason why no new node will be added, "" = unknown.
    """
    if engine.failure:
        return PodEnd(engine.failure, engine.hopeless, pool_full=engine.pool_full)
    if engine.gone or (pod is None and engine.created):
        return PodEnd("" if engine.stopping else "its pod was deleted")
    if pod is None:
        return None
    if pod.over:
        how = pod.ended or ("exit code 0" if pod.phase == "Succeeded" else "its pod failed")
        return PodEnd(how, remove=True)
    if pod.terminating:
        # Another client deletes the pod, so it must leave the routes now, and finishes within its
        # grace period.
        return None if engine.stopping else PodEnd(pod.disruption or "its pod is being deleted")
    if pod.fault:
        return PodEnd(pod.fault, hopeless=True, remove=True)
    if not pod.unschedulable:
        engine.waiting_s = 0.0
        return None
    engine.waiting_s = engine.waiting_s or now_s
    if supply_fault:
        return _no_node(supply_fault)
    if now_s - engine.waiting_s >= max(NO_NODE_S, node_wait_s):
        return _no_node(pod.unschedulable)
    return None


def _no_node(why: str) -> PodEnd:
    return PodEnd(f"no node: {why}", hopeless=True, remove=True, pool_full=True)
