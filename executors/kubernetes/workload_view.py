"""A workload that its owner opted in for mode `scale`, parsed from the server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import MANAGER, Manifest
from executors.kubernetes.kube_kinds import DEPLOYMENT, LEADER_WORKER_SET, Kind
from executors.kubernetes.pod_view import PodView
from topics.fleet import PHASES

PORT = "shoal.dev/port"
_DEFAULT_PORT = 8000
_MOST = 100_000
_LWS_NAME = "leaderworkerset.sigs.k8s.io/name"
_LWS_WORKER = "leaderworkerset.sigs.k8s.io/worker-index"


@dataclass(frozen=True, slots=True)
class WorkloadView:
    """One workload. model, role, pool, least, most, port: values of its annotations. selector:
    labels of its pods. gpus: number of GPUs of one pod, 0 = unknown. fault: the reason why Shoal
    must not scale it, "" = none. last_writer: manager that last set the replicas, "" = Shoal or
    unknown.
    """

    kind: Kind
    name: str
    model: str
    role: str
    pool: str
    replicas: int
    least: int = 0
    most: int = _MOST
    port: int = _DEFAULT_PORT
    selector: Mapping[str, str] = field(default_factory=dict)
    gpus: int = 0
    fault: str = ""
    last_writer: str = ""

    @property
    def title(self) -> str:
        """The workload as text: "deployments/llama"."""
        return f"{self.kind.plural}/{self.name}"

    @property
    def picks_victim(self) -> bool:
        """Whether the deletion cost of pods decides which pod leaves. Other kinds remove the
        highest ordinal."""
        return self.kind == DEPLOYMENT

    def owns(self, pod: PodView) -> bool:
        """Whether `pod` is one of the workload's pods that serve requests."""
        if not self.selector:
            return False
        if self.kind == LEADER_WORKER_SET and pod.labels.get(_LWS_WORKER, "0") != "0":
            return False
        return all(pod.labels.get(key) == value for key, value in self.selector.items())


def parse_workload(kind: Kind, raw: Manifest) -> WorkloadView | None:
    """The workload in `raw`; None if its owner did not opt it in."""
    meta, spec = raw["metadata"], raw.get("spec") or {}
    notes: Mapping[str, str] = meta.get("annotations") or {}
    if notes.get(names.MANAGED) != "true":
        return None
    selector = (spec.get("selector") or {}).get("matchLabels") or {}
    if kind == LEADER_WORKER_SET:
        selector = {_LWS_NAME: str(meta["name"])}
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
    if names.SERVING in selector:
        fault = (
            f"{names.SERVING} is in the selector, so a drained pod would leave the workload; use "
            "it as a label of the pod template only"
        )
    manager = _declared_by(meta)
    if manager:
        fault = (
            f"{manager} applies spec.replicas; remove the field from its manifest, or do not let "
            "Shoal scale this workload"
        )
    return WorkloadView(
        kind=kind,
        name=str(meta["name"]),
        model=str(notes.get(names.MODEL, "")),
        role=role if role in PHASES else "aggregated",
        pool=str(notes.get(names.POOL, "")),
        replicas=int(spec.get("replicas", 1)),
        least=least,
        most=most,
        port=port,
        selector=selector,
        gpus=_gpus(spec),
        fault=fault,
        last_writer=_last_writer(meta),
    )


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
    return sum(int(n) for part in limits for key, n in part.items() if "/" in key)


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
