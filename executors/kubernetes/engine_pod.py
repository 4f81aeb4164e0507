"""The engine of one instance as a pod: the conditions under which it counts as ended, and the
reason why it waits. Pure.

A pod that ended, was deleted, or can never start is reported as an ended engine with a reason.
While the API server is away, pods count as alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from executors.kubernetes.pod_template import PodLaunch
from executors.kubernetes.pod_view import PodView
from topics.fleet import LaunchCode

NO_NODE_S = 2.0
"""A pod is given up if it has no node after this time in seconds, unless an autoscaler adds nodes
to the pool."""

QUIET_S = 3.0
"""Seconds for which a launch may lack an answer, a scheduler or a container without a reason."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The reason why a launch waits, or failed."""

    code: LaunchCode
    text: str


@dataclass(slots=True, eq=False)
class EnginePod:
    """One launch. pod: name of the pod, "" until it is known.

    created: whether the server confirmed the pod. gone: whether the server confirmed that no such
    pod exists. failure: the reason why no pod was created, None = no failure. hopeless: whether
    another attempt would fail too. pool_fails: whether all nodes of the pool fail likewise.
    stopping: whether this executor stops the pod. held_up: the reason why there is no pod yet, None
    = not known. waiting_s: time since which the scheduler finds no node, 0 = it does not report
    that. quiet_s: time since which nothing tells why the launch waits, 0 = not yet. told: codes of
    which an Event was written. lost: the reason why `gone` although the pod exists, "" = it does
    not.
    """

    launch: PodLaunch
    pod: str = ""
    created: bool = False
    gone: bool = False
    failure: Wait | None = None
    hopeless: bool = False
    pool_fails: bool = False
    stopping: bool = False
    held_up: Wait | None = None
    waiting_s: float = 0.0
    quiet_s: float = 0.0
    told: set[str] = field(default_factory=set)
    lost: str = ""

    def fail(self, code: LaunchCode, text: str, pool_fails: bool = False) -> None:
        """Give the launch up."""
        self.failure, self.hopeless, self.pool_fails = Wait(code, text), True, pool_fails


@dataclass(frozen=True, slots=True)
class PodEnd:
    """The reason why an engine has ended. code: "" = the engine itself ended. remove: whether its
    pod still exists and must be deleted. node_full: whether no node had room for the pod.
    pool_fails: whether all nodes of the pool fail likewise."""

    reason: str
    code: str = ""
    hopeless: bool = False
    remove: bool = False
    node_full: bool = False
    pool_fails: bool = False


def end_of(
    engine: EnginePod, pod: PodView | None, now_s: float, node_wait_s: float, supply_fault: str = ""
) -> PodEnd | None:
    """The reason why `engine` has ended, None if it is alive. now_s: monotonic time. pod: its pod
    in the local copy. node_wait_s: time for which a pod of the pool waits for a new node.
    supply_fault: the reason why no new node will be added, "" = unknown.
    """
    if engine.failure is not None:
        code, text = engine.failure.code, engine.failure.text
        return PodEnd(text, code, engine.hopeless, pool_fails=engine.pool_fails)
    if engine.gone or (pod is None and engine.created):
        return PodEnd("" if engine.stopping else engine.lost or "its pod was deleted")
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
        return PodEnd(pod.fault, LaunchCode.CONTAINER, hopeless=True, remove=True)
    return _without_node(engine, pod, now_s, node_wait_s, supply_fault)


def _without_node(
    engine: EnginePod, pod: PodView, now_s: float, node_wait_s: float, supply_fault: str
) -> PodEnd | None:
    # Pods of lower priority leave a node for a nominated pod, so it is about to get this node.
    if not pod.unschedulable or pod.nominated:
        engine.waiting_s = 0.0
        return None
    engine.waiting_s = engine.waiting_s or now_s
    late = now_s - engine.waiting_s >= max(NO_NODE_S, node_wait_s)
    if not (supply_fault or late):
        return None
    why = f"no node: {supply_fault or pod.unschedulable}"
    return PodEnd(why, LaunchCode.NO_NODE, hopeless=True, remove=True, node_full=True)


def wait_of(engine: EnginePod, pod: PodView | None, now_s: float) -> Wait | None:
    """The reason why an engine that is alive does not start yet, None = it starts, or has lacked a
    pod or a reason for a short time only. now_s: monotonic time."""
    reported = None if pod is None else _reported(pod)
    if reported is not None or (pod is not None and pod.started):
        engine.quiet_s = 0.0
        return reported
    engine.quiet_s = engine.quiet_s or now_s
    if now_s - engine.quiet_s < QUIET_S:
        return None
    return engine.held_up if pod is None and engine.held_up else _unexplained(pod)


def _reported(pod: PodView) -> Wait | None:
    """The reason that the cluster reports in the pod's status."""
    if pod.nominated:
        return Wait(LaunchCode.PREEMPTING, f"pods of lower priority leave node {pod.nominated}")
    if pod.gates:
        return Wait(LaunchCode.GATED, f"scheduling gates: {', '.join(pod.gates)}")
    if pod.unschedulable:
        return Wait(LaunchCode.UNSCHEDULABLE, pod.unschedulable)
    return Wait(LaunchCode.CONTAINER, pod.waiting) if pod.waiting else None


def _unexplained(pod: PodView | None) -> Wait:
    if pod is None:
        return Wait(LaunchCode.NO_ANSWER, "no answer of the API server to the creation of the pod")
    if not pod.node:
        return Wait(LaunchCode.NO_SCHEDULER, "no scheduler has looked at the pod")
    return Wait(LaunchCode.CONTAINER, f"ContainerCreating on node {pod.node}")
