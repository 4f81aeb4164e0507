"""The facts about a pod that this package needs, parsed from the server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from executors.kubernetes.controllers import Ref, controller_of
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_quantity import device_counts

_IMAGE_FAULTS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull",
     "CreateContainerConfigError", "CreateContainerError"}
)  # fmt: skip

_USUAL_WAITS = frozenset({"ContainerCreating", "PodInitializing"})


@dataclass(frozen=True, slots=True)
class PodView:
    """One pod. ip, node: "" until known. phase: Pending, Running, Succeeded or Failed. ready: the
    Ready condition. terminating: whether deletion was requested; grace_s: time from then until
    SIGKILL. unschedulable: the scheduler's message if it finds no node, else "". gates: scheduling
    gates that hold the pod back. nominated: the node that other pods leave for this pod, else "".
    waiting: the reason why a container waits that may still start, fault: that of one that cannot,
    else "". started: whether a container runs or ran. ended: description of how the engine's
    container ended, else "". disruption: the reason of a planned eviction, else "". devices:
    extended resources that the pod holds. controller: the object that made the pod, None = no
    object. owners: its owner references, as JSON. claims: names of the ResourceClaims that hold its
    devices.
    """

    name: str
    namespace: str
    uid: str
    created_s: float
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    ip: str = ""
    node: str = ""
    phase: str = "Pending"
    ready: bool = False
    terminating: bool = False
    grace_s: float = 0.0
    unschedulable: str = ""
    gates: tuple[str, ...] = ()
    nominated: str = ""
    waiting: str = ""
    started: bool = False
    fault: str = ""
    ended: str = ""
    disruption: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    controller: Ref | None = None
    owners: tuple[Manifest, ...] = ()
    claims: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """Whether the containers have ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def serves(self) -> bool:
        """Whether the pod is Ready and not being deleted."""
        return self.ready and not self.terminating and not self.over


def metadata_change(
    pod: PodView, labels: Mapping[str, str | None], annotations: Mapping[str, str | None]
) -> dict[str, dict[str, str | None]]:
    """The wanted labels and annotations that differ from those of `pod`, as a patch of its
    metadata. Empty if none differs."""
    parts = (("labels", labels, pod.labels), ("annotations", annotations, pod.annotations))
    change: dict[str, dict[str, str | None]] = {}
    for part, wanted, present in parts:
        differs = {key: value for key, value in wanted.items() if present.get(key) != value}
        if differs:
            change[part] = differs
    return change


def parse_pod(raw: Manifest) -> PodView:
    """The pod in `raw`."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = {str(c.get("type")): c for c in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    unschedulable = ""
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        unschedulable = str(scheduled.get("message") or "no node fits")
    disrupted = conditions.get("DisruptionTarget") or {}
    fault, ended = _containers(status)
    waiting, started = _starts(status)
    return PodView(
        name=str(meta["name"]),
        namespace=str(meta.get("namespace") or ""),
        uid=str(meta.get("uid") or ""),
        created_s=timestamp_s(meta.get("creationTimestamp")),
        labels=dict(meta.get("labels") or {}),
        annotations=dict(meta.get("annotations") or {}),
        ip=str(status.get("podIP") or ""),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        terminating=bool(meta.get("deletionTimestamp")),
        grace_s=float(meta.get("deletionGracePeriodSeconds") or 0),
        unschedulable=unschedulable,
        gates=tuple(str(one.get("name")) for one in spec.get("schedulingGates") or ()),
        nominated="" if spec.get("nodeName") else str(status.get("nominatedNodeName") or ""),
        waiting=waiting,
        started=started,
        fault=fault,
        ended=ended or _evicted(status),
        disruption=(
            str(disrupted.get("reason") or "DisruptionTarget")
            if disrupted.get("status") == "True"
            else ""
        ),
        devices=_devices(spec),
        controller=controller_of(meta),
        owners=tuple(meta.get("ownerReferences") or ()),
        claims=_claims(spec, status),
    )


def _claims(spec: Manifest, status: Manifest) -> tuple[str, ...]:
    named = [one.get("resourceClaimName") for one in spec.get("resourceClaims") or ()]
    made = [one.get("resourceClaimName") for one in status.get("resourceClaimStatuses") or ()]
    return tuple(str(name) for name in [*named, *made] if name)


def timestamp_s(text: object) -> float:
    """Seconds since the epoch of an RFC 3339 time; 0 if there is none."""
    return datetime.fromisoformat(text).timestamp() if isinstance(text, str) and text else 0.0


def _starts(status: Manifest) -> tuple[str, bool]:
    """(reason why a container waits, whether a container runs or ran)."""
    waiting, started = "", False
    for container in _statuses(status):
        state = container.get("state") or {}
        wait = state.get("waiting") or {}
        if wait.get("reason") and wait["reason"] not in _USUAL_WAITS and not waiting:
            waiting = f"{wait['reason']}: {wait.get('message') or container.get('image', '')}"
        started = started or bool(state.get("running") or state.get("terminated"))
    return waiting, started


def _statuses(status: Manifest) -> list[Manifest]:
    return [
        *(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()),
    ]  # fmt: skip


def _containers(status: Manifest) -> tuple[str, str]:
    """(reason why a container cannot start, description of how the first ended container ended); ""
    if there is none."""
    fault = ended = ""
    for container in _statuses(status):
        state = container.get("state") or {}
        waiting, over = state.get("waiting") or {}, state.get("terminated") or {}
        if waiting.get("reason") in _IMAGE_FAULTS and not fault:
            fault = f"{waiting['reason']}: {waiting.get('message') or container.get('image', '')}"
        if over and over.get("exitCode") and not ended:
            text = str(over.get("message") or "").strip().rpartition("\n")[2]
            how = f"exit code {over['exitCode']} ({over.get('reason') or 'Error'})"
            ended = f"{how}: {text}" if text else how
    return fault, ended


def _evicted(status: Manifest) -> str:
    reason, message = status.get("reason") or "", status.get("message") or ""
    return f"{reason}: {message}" if reason and message else str(reason or message)


def _devices(spec: Manifest) -> dict[str, int]:
    """Devices by resource name: extended resources, whose names contain a domain."""
    found: dict[str, int] = {}
    for container in spec.get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        for name, count in device_counts(limits).items():
            found[name] = found.get(name, 0) + count
    return found
