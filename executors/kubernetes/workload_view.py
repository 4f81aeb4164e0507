"""A workload with `/scale`, parsed from the server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executors.kubernetes import kube_names as names
from executors.kubernetes.accelerators import count_accelerators
from executors.kubernetes.controllers import Ref, controller_of
from executors.kubernetes.kube_client import MANAGER, Manifest
from executors.kubernetes.kube_kinds import DEPLOYMENT, STATEFUL_SET, Kind
from executors.kubernetes.kube_quantity import device_counts
from executors.kubernetes.rolling_update import RollingUpdate, parse_rolling_update
from topics.fleet import PHASES

PORT = "shoal.dev/port"
_DEFAULT_PORT = 8000
_MOST = 100_000

SELECTED_FAULT = (
    f"{names.SERVING} is in the selector, so a drained pod would leave the workload; use it as a "
    "label of the pod template only"
)


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload. managed: whether its owner opted it in for mode `scale`; the other values are
    unknown if not, except `controller`, the object that made it.

    model, role, pool, least, most, port: values of its annotations. version: resource version.
    selector: that of `/scale`, for a kind whose pods may have no chain of controllers; "" =
    controllers alone decide. gpus: number of GPUs of one pod, 0 = unknown. size: number of pods of
    one replica, on a node each. fault: the reason why Shoal must not scale it, "" = none.
    last_writer: manager that last set the replicas, "" = Shoal or unknown. blocked: the reason why
    its controller cannot make pods, "" = it can. rollout: that of a Deployment.
    """

    kind: Kind
    name: str
    model: str = ""
    role: str = ""
    pool: str = ""
    replicas: int = 0
    least: int = 0
    most: int = _MOST
    port: int = _DEFAULT_PORT
    gpus: int = 0
    size: int = 1
    fault: str = ""
    last_writer: str = ""
    blocked: str = ""
    rollout: RollingUpdate = field(default_factory=RollingUpdate)
    managed: bool = True
    controller: Ref | None = None
    selector: str = ""
    version: str = ""

    @property
    def ref(self) -> Ref:
        """The workload as controllers of other objects name it."""
        return self.kind.group, self.kind.kind, self.name

    @property
    def title(self) -> str:
        """The workload as text: "deployments/llama"."""
        return f"{self.kind.plural}/{self.name}"

    @property
    def picks_victim(self) -> bool:
        """Whether the deletion cost of pods decides which pod leaves. Other kinds remove the
        highest ordinal."""
        return self.kind == DEPLOYMENT

    @property
    def moves(self) -> bool:
        """Whether a pod that must leave its node can be replaced by an additional one. A
        StatefulSet makes an evicted pod again elsewhere."""
        return self.kind in (DEPLOYMENT, STATEFUL_SET)


def parse_workload(kind: Kind, raw: Manifest) -> WorkloadView:
    """The workload in `raw`."""
    meta, spec = raw["metadata"], raw.get("spec") or {}
    notes: Mapping[str, str] = meta.get("annotations") or {}
    status = raw.get("status") or {}
    name, controller = str(meta["name"]), controller_of(meta)
    if notes.get(names.MANAGED) != "true":
        return WorkloadView(kind, name, managed=False, controller=controller)
    role = notes.get(names.ROLE, "aggregated")
    least, least_fault = _count(notes, names.MIN, 0)
    most, most_fault = _count(notes, names.MAX, _MOST)
    port, port_fault = _count(notes, PORT, _DEFAULT_PORT)
    fault = least_fault or most_fault or port_fault
    if role not in PHASES:
        fault = f"{names.ROLE}: {role!r} is not allowed; allowed: {', '.join(PHASES)}"
    for key in (names.MODEL, names.POOL):
        if not notes.get(key):
            fault = f"annotation {key} is missing"
    if names.SERVING in _selected_labels(spec.get("selector")):
        fault = SELECTED_FAULT
    manager = _declared_by(meta)
    if manager:
        fault = (
            f"{manager} applies spec.replicas; remove the field from its manifest, or do not let "
            "Shoal scale this workload"
        )
    return WorkloadView(
        kind=kind,
        name=name,
        model=str(notes.get(names.MODEL, "")),
        role=role if role in PHASES else "aggregated",
        pool=str(notes.get(names.POOL, "")),
        replicas=_replicas(spec),
        least=least,
        most=most,
        port=port,
        gpus=_gpus(spec),
        size=max(1, int((spec.get("leaderWorkerTemplate") or {}).get("size") or 1)),
        fault=fault,
        last_writer=_last_writer(meta),
        blocked=_blocked(status),
        rollout=parse_rolling_update(spec, status) if kind == DEPLOYMENT else RollingUpdate(),
        controller=controller,
        version=str(meta.get("resourceVersion") or ""),
    )


def _replicas(spec: Mapping[str, Any]) -> int:
    found = spec.get("replicas")
    return found if isinstance(found, int) else 1


def _blocked(status: Mapping[str, Any]) -> str:
    for one in status.get("conditions") or ():
        if one.get("type") == "ReplicaFailure" and one.get("status") == "True":
            return f"{one.get('reason')}: {one.get('message')}"
    return ""


def _selected_labels(selector: object) -> set[str]:
    """The names of the labels in a selector of the form that Deployments have."""
    if not isinstance(selector, dict):
        return set()
    keys = {str(one.get("key")) for one in selector.get("matchExpressions") or ()}
    return keys | set(selector.get("matchLabels") or ())


def _count(notes: Mapping[str, str], key: str, default: int) -> tuple[int, str]:
    text = notes.get(key)
    if text is None:
        return default, ""
    if text.isascii() and text.isdigit() and int(text) <= _MOST:
        return int(text), ""
    return default, f"{key}: {text!r} is not allowed; allowed: a whole number up to {_MOST}"


def _gpus(spec: Mapping[str, Any]) -> int:
    template = spec.get("template") or (spec.get("leaderWorkerTemplate") or {}).get(
        "workerTemplate"
    )
    containers = ((template or {}).get("spec") or {}).get("containers") or ()
    limits = ((c.get("resources") or {}).get("limits") or {} for c in containers)
    return sum(count_accelerators(device_counts(part)) for part in limits)


def _writers(meta: Manifest) -> list[Mapping[str, Any]]:
    """The entries of `managedFields` that own the replicas."""
    found = []
    for entry in meta.get("managedFields") or ():
        fields = (entry.get("fieldsV1") or {}).get("f:spec") or {}
        if "f:replicas" in fields:
            found.append(entry)
    return found


def _declared_by(meta: Manifest) -> str:
    """The manager that repeatedly applies the replicas from a manifest, "" if there is none."""
    applied = [e for e in _writers(meta) if e.get("operation") == "Apply"]
    return next((str(e.get("manager")) for e in applied if e.get("manager") != MANAGER), "")


def _last_writer(meta: Manifest) -> str:
    entries = sorted(_writers(meta), key=lambda entry: str(entry.get("time") or ""))
    others = [str(entry.get("manager")) for entry in entries if entry.get("manager") != MANAGER]
    return others[-1] if others else ""
