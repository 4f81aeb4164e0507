"""The operator's pod template, and the pod of one launch made from it.

The template is a pod in YAML, in a ConfigMap. The container called "engine" runs the engine; the
operator sets its image, volumes, tolerations, probes and everything else. Shoal adds the command,
its labels, the GPUs, the pool's node labels and the affinity of the slot.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson
import yaml

from executors.engines.engine_protocol import API_KEY, LaunchLine
from executors.kubernetes import kube_names as names
from executors.kubernetes.accelerators import is_mig
from executors.kubernetes.kube_client import Manifest
from topics.checks import InvalidValue
from topics.codec import read_value, write_value
from topics.fleet import DesiredInstance

CONTAINER = "engine"
DEFAULT_KEY = "pod.yaml"
POD_IP = "$(POD_IP)"
"""Kubernetes replaces this reference in commands and variables by the pod's address."""

_RESERVED = ("command", "args")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class PodLaunch:
    """The identity of one launch, stored in an annotation of the pod. attempt: number of earlier
    pods of the instance. ports: ports on which the engine listens. launched_ms: domain time of the
    launch. template: digest of the pod's template, "" = unknown or none.
    """

    desired: DesiredInstance
    attempt: int
    ports: tuple[int, ...]
    launched_ms: int
    template: str = ""

    @property
    def pod(self) -> str:
        """The name of the pod."""
        return names.pod_name(self.desired.instance, self.attempt)


@dataclass(frozen=True, slots=True)
class PodSettings:
    """Settings of a pool's pods.

    nodes: labels of the pool's nodes. gpu_resource: the name of its GPUs as a resource. key_secret:
    name and key of the Secret with the engines' API key, ("", "") = none. queue: Kueue's queue, ""
    = none.
    """

    pool: str
    nodes: Mapping[str, str]
    gpu_resource: str = "nvidia.com/gpu"
    key_secret: tuple[str, str] = ("", "")
    queue: str = ""


def parse_template(text: str) -> Manifest:
    """The template in `text`. Raises InvalidValue, which names the field that Shoal cannot
    accept."""
    try:
        raw = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InvalidValue("template", text[:80], f"YAML ({error})") from None
    if not isinstance(raw, dict) or not isinstance(raw.get("spec"), dict):
        raise InvalidValue("template", raw, "a pod with metadata and spec")
    containers = raw["spec"].get("containers")
    if not isinstance(containers, list) or not all(isinstance(c, dict) for c in containers):
        raise InvalidValue("template.spec.containers", containers, "a list of containers")
    found = [c for c in containers if c.get("name") == CONTAINER]
    if len(found) != 1:
        shown = [c.get("name") for c in containers]
        raise InvalidValue("template.spec.containers", shown, f"one container named {CONTAINER}")
    for key in _RESERVED:
        if key in found[0]:
            where = f"template.spec.containers[{CONTAINER}].{key}"
            raise InvalidValue(where, found[0][key], "nothing: the command comes from the plan")
    restart = raw["spec"].get("restartPolicy", "Never")
    if restart != "Never":
        allowed = "Never, because Shoal decides when an engine starts again"
        raise InvalidValue("template.spec.restartPolicy", restart, allowed)
    return raw


def build_pod(
    template: Manifest, settings: PodSettings, slot: str, launch: PodLaunch, line: LaunchLine,
    image: str, grace_s: int,
) -> Manifest:  # fmt: skip
    """The pod of `launch`. image: image of the engine's profile, "" = use the template's."""
    desired = launch.desired
    pod = copy.deepcopy(template)
    meta, spec = pod.setdefault("metadata", {}) or {}, pod["spec"]
    pod["metadata"] = meta
    meta["name"] = launch.pod
    for key in ("namespace", "generateName", "ownerReferences"):
        meta.pop(key, None)
    meta["labels"] = {**(meta.get("labels") or {}), **_labels(settings, slot, desired)}
    meta["annotations"] = {
        names.SAFE_TO_EVICT: "true",
        **(meta.get("annotations") or {}),
        names.LAUNCH: dump_launch(launch),
    }
    if settings.queue:
        meta["labels"]["kueue.x-k8s.io/queue-name"] = settings.queue
    spec["restartPolicy"] = "Never"
    spec.setdefault("automountServiceAccountToken", False)
    spec.setdefault("terminationGracePeriodSeconds", grace_s)
    spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **settings.nodes}
    spec["affinity"] = _with_slot(spec.get("affinity") or {}, settings, slot)
    engine = next(c for c in spec["containers"] if c.get("name") == CONTAINER)
    engine["command"] = list(line.argv)
    engine["env"] = _variables(engine.get("env") or [], line, settings)
    if image:
        engine["image"] = image
    resources = engine.setdefault("resources", {})
    count = str(len(desired.gpus))
    resources["limits"] = {**(resources.get("limits") or {}), settings.gpu_resource: count}
    return pod


def owned_by(namespace: Manifest) -> list[Manifest]:
    """The owner reference of pods to their namespace.

    `kubectl drain` takes only pods that have a controller. Garbage collection deletes the pods of a
    deleted owner, so the owner is no object that users delete by itself. The node is no owner
    either: Karpenter ends nodes without waiting for pods that a node owns.
    """
    meta = namespace["metadata"]
    about = {"apiVersion": "v1", "kind": "Namespace", "name": meta["name"], "uid": meta["uid"]}
    return [{**about, "controller": True}]


def dump_launch(launch: PodLaunch) -> str:
    """`launch` as the text of its annotation."""
    found = {
        "desired": orjson.Fragment(write_value(launch.desired)),
        "attempt": launch.attempt,
        "ports": launch.ports,
        "at": launch.launched_ms,
        "template": launch.template,
    }
    return orjson.dumps(found).decode()


def read_launch(annotations: Mapping[str, str]) -> PodLaunch | None:
    """The launch in a pod's annotations; None if it is missing or unreadable."""
    try:
        raw: dict[str, Any] = orjson.loads(annotations.get(names.LAUNCH, ""))
        desired = read_value(DesiredInstance, raw["desired"])
        ports = tuple(int(port) for port in raw["ports"])
        template = str(raw.get("template", ""))
        return PodLaunch(desired, int(raw["attempt"]), ports, int(raw["at"]), template)
    except (KeyError, TypeError, ValueError, InvalidValue):
        return None


def with_role(launch: PodLaunch, labels: Mapping[str, str]) -> PodLaunch:
    """`launch` in the role that the pod's labels name: a role switch changes only the label."""
    role = labels.get(names.ROLE, launch.desired.phase)
    try:
        return replace(launch, desired=replace(launch.desired, phase=role))
    except InvalidValue:
        return launch


def _labels(settings: PodSettings, slot: str, desired: DesiredInstance) -> dict[str, str]:
    return {
        names.MANAGED: "true",
        names.MODEL: names.label_value(desired.model),
        names.ROLE: desired.phase,
        names.POOL: names.pool_label(settings.pool),
        names.SLOT: names.label_value(slot),
        names.INSTANCE: names.label_value(desired.instance),
        names.GROUP: names.label_value(desired.group),
        names.SERVING: "false",
    }


def _with_slot(affinity: Manifest, settings: PodSettings, slot: str) -> Manifest:
    """`affinity` with the rules of slots added: all pods of a slot are on one node, and a node has
    only one slot. Pods of other owners, which instances of the slots claimed in mode `scale`, only
    make a node preferred: they may be on more nodes than their slot.

    The first pod of a slot binds the slot to its node, because a required affinity to one's own
    labels is met while no pod with these labels exists.
    """
    value = names.label_value(slot)
    own: Manifest = {"key": names.MANAGED, "operator": "In", "values": ["true"]}
    together: list[Manifest] = [{"key": names.SLOT, "operator": "In", "values": [value]}]
    apart: list[Manifest] = [
        {"key": names.SLOT, "operator": "Exists"},
        {"key": names.SLOT, "operator": "NotIn", "values": [value]},
    ]
    found = dict(affinity)
    rules = (("podAffinity", together), ("podAntiAffinity", apart))
    # A MIG slice is a slot of its own, so several slots share a node.
    for key, slots in () if is_mig(settings.gpu_resource) else rules:
        part = dict(found.get(key) or {})
        preferred = {"weight": 100, "podAffinityTerm": _on_node(slots)}
        for when, rule in ((_REQUIRED, _on_node([own, *slots])), (_PREFERRED, preferred)):
            part[when] = [*(part.get(when) or ()), rule]
        found[key] = part
    return found


def _on_node(pods: list[Manifest]) -> Manifest:
    """The term of affinity to nodes with pods that match the expressions `pods`."""
    selector = {"matchExpressions": pods}
    return {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}


def _variables(given: list[Manifest], line: LaunchLine, settings: PodSettings) -> list[Manifest]:
    """The engine's variables. POD_IP comes first, because later values refer to it. The API key is
    a reference to a Secret, so that the pod contains no secret."""
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    own: dict[str, Manifest] = {}
    for name, value in line.env:
        if name != API_KEY:
            own[name] = {"name": name, "value": value}
    secret, key = settings.key_secret
    if secret:
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        own[API_KEY] = {"name": API_KEY, "valueFrom": reference}
    kept = [item for item in given if item.get("name") not in {"POD_IP", *own}]
    return [address, *kept, *own.values()]
