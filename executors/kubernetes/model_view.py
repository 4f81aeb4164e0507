"""A ShoalModel, and its status from a report of the controller. Pure.

The status follows the conventions of the Kubernetes API. Figures are rounded, so that noise changes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from executors.kubernetes import kube_names as names
from executors.kubernetes.controller_status import ModelReport
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_kinds import NAMESPACE, SHOAL_MODEL
from topics.printable import printable

_WORDS = re.compile(r"[A-Za-z0-9]+")
_LONGEST = 1000
_HEALTHY_LEVELS = ("ok", "attention")


@dataclass(frozen=True, slots=True)
class ModelView:
    """One ShoalModel. model: the model that it names. executor: the label of the executor that made
    it, "" = another client made it."""

    name: str
    uid: str
    generation: int
    model: str
    executor: str = ""
    terminating: bool = False
    status: Manifest = field(default_factory=dict)

    @property
    def takes_name(self) -> bool:
        """Whether this is the object of its model by name."""
        return self.name == names.object_name(self.model)


def parse_model(raw: Manifest) -> ModelView:
    """The ShoalModel in `raw`."""
    meta = raw["metadata"]
    return ModelView(
        name=str(meta["name"]),
        uid=str(meta["uid"]),
        generation=int(meta.get("generation") or 0),
        model=str((raw.get("spec") or {}).get("model") or ""),
        executor=str((meta.get("labels") or {}).get(names.EXECUTOR) or ""),
        terminating=bool(meta.get("deletionTimestamp")),
        status=dict(raw.get("status") or {}),
    )


def build_model(model: str, executor: str) -> Manifest:
    """The object of `model`, without a status. executor: id of the executor that makes it."""
    labels = {names.MODEL: names.label_value(model), names.EXECUTOR: names.label_value(executor)}
    meta = {"name": names.object_name(model), "labels": labels}
    return {"metadata": meta, "spec": {"model": model}}


def reported_status(view: ModelView, report: ModelReport, now: datetime) -> Manifest:
    """The status of `view` by `report`. The last decision stays until a later one is known."""
    shown = f"{report.ready} of {report.wanted} ready"
    if not report.wanted:
        ready = ("True", "ScaledToZero", shown)
    elif report.ready >= report.wanted:
        ready = ("True", "AllReady", shown)
    else:
        ready = ("False", "NotAllReady", shown)
    healthy = "True" if report.level in _HEALTHY_LEVELS else "False"
    code = next(iter(report.codes), report.level)
    found = {
        "Reported": ("True", "Reported", ""),
        "Ready": ready,
        "Healthy": (healthy, camel_case(code), report.text),
    }
    made: Manifest = {
        "mode": report.mode,
        "wanted": report.wanted,
        "ready": report.ready,
        "usdPerHour": round(report.usd_per_h, 2),
        "conditions": _conditions(view, found, now),
        "observedGeneration": view.generation,
    }
    if report.attained is not None:
        made["sloAttainment"] = round(report.attained, 3)
    if report.decision is not None:
        made["lastDecision"] = {
            "kind": camel_case(report.decision.kind),
            "cause": camel_case(report.decision.cause) if report.decision.cause else "",
            "message": _line(report.decision.reason),
            "time": _time(report.decision.at),
        }
    elif "lastDecision" in view.status:
        made["lastDecision"] = view.status["lastDecision"]
    return made


def silent_status(view: ModelView, now: datetime) -> Manifest:
    """The status of `view` while no leading controller answers: the figures stay."""
    kinds = [str(one.get("type")) for one in view.status.get("conditions") or ()]
    text = "no leading controller answers, so the figures are old"
    found = dict.fromkeys((*kinds, "Reported"), ("Unknown", "NoController", text))
    made = {"conditions": _conditions(view, found, now), "observedGeneration": view.generation}
    return {**view.status, **made}


def unused_status(view: ModelView, declared: bool, now: datetime) -> Manifest:
    """The status of an object that shows no model. declared: whether another one shows its
    model."""
    if declared:
        found = ("False", "OtherObject", f"{names.object_name(view.model)} shows {view.model}")
    else:
        text = f"shoal.yaml declares no model {view.model}; this object does not declare one either"
        found = ("False", "NotDeclared", text)
    conditions = _conditions(view, {"Reported": found}, now)
    return {"conditions": conditions, "observedGeneration": view.generation}


def status_patch(stored: Manifest, wanted: Manifest) -> Manifest:
    """The JSON merge patch from the status `stored` to `wanted`; empty if they are equal."""
    return {
        key: wanted.get(key)
        for key in sorted({*stored, *wanted})
        if stored.get(key) != wanted.get(key)
    }


def is_urgent(stored: Manifest, wanted: Manifest) -> bool:
    """Whether the statuses differ in more than figures and texts."""
    return _essence(stored) != _essence(wanted)


def camel_case(code: str) -> str:
    """A code in the form of the Kubernetes API: "scale_out" gives "ScaleOut"."""
    words = "".join(word[:1].upper() + word[1:] for word in _WORDS.findall(code))
    return words if words[:1].isalpha() else f"Code{words}"


def with_model(owners: Iterable[Mapping[str, Any]], view: ModelView) -> list[Manifest] | None:
    """The owner references of a pod of the model, None if they stay as they are.

    The model is a second owner: Kubernetes deletes an object only if all its owners are gone, so a
    pod outlives its ShoalModel. Hence a pod that the namespace does not own gets no owner.
    """
    found = [dict(one) for one in owners]
    if not any(one.get("kind") == NAMESPACE.kind for one in found):
        return None
    reference = {
        "apiVersion": SHOAL_MODEL.api_version,
        "kind": SHOAL_MODEL.kind,
        "name": view.name,
        "uid": view.uid,
    }
    others = [one for one in found if one.get("kind") != SHOAL_MODEL.kind]
    if any(one.get("uid") == view.uid for one in found) and len(others) == len(found) - 1:
        return None
    return [*others, reference]


def _conditions(
    view: ModelView, found: Mapping[str, tuple[str, str, str]], now: datetime
) -> list[Manifest]:
    """The conditions by type: (status, reason, message). The time of a transition stays while the
    status does."""
    former = {str(one.get("type")): one for one in view.status.get("conditions") or ()}
    made = []
    for kind, (status, reason, message) in found.items():
        before = former.get(kind) or {}
        since = before.get("lastTransitionTime") if before.get("status") == status else None
        made.append({
            "type": kind,
            "status": status,
            "reason": reason,
            "message": _line(message),
            "lastTransitionTime": since or _time(now),
            "observedGeneration": view.generation,
        })  # fmt: skip
    return made


def _essence(status: Manifest) -> tuple[Any, ...]:
    conditions = status.get("conditions") or ()
    return (
        *(status.get(key) for key in ("mode", "wanted", "ready", "lastDecision")),
        [(one.get("type"), one.get("status"), one.get("reason")) for one in conditions],
        status.get("observedGeneration"),
    )


def _line(text: str) -> str:
    return printable(text)[:_LONGEST]


def _time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
