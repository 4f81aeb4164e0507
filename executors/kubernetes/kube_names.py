"""Labels, annotations and object names that Shoal writes or reads on a cluster.

Label values are shorter than Shoal's ids and allow fewer characters, so `label_value` converts ids;
the annotation with the launch holds the exact ids.
"""

from __future__ import annotations

import hashlib
import re

MANAGED = "shoal.dev/managed"
"""Label of Shoal's own pods, and annotation with which an owner opts a workload in: "true"."""

MODEL, ROLE, POOL = "shoal.dev/model", "shoal.dev/role", "shoal.dev/pool"
SLOT, INSTANCE, GROUP = "shoal.dev/slot", "shoal.dev/instance", "shoal.dev/group"
SERVING = "shoal.dev/serving"
"""Label that endpoint pickers select: "true", "false" (not ready yet) or "draining"."""

MIN, MAX, ENGINE = "shoal.dev/min", "shoal.dev/max", "shoal.dev/engine"
LAUNCH = "shoal.dev/launch"
"""Annotation with the launch of a pod: the fields of `topics.fleet.DesiredInstance` as JSON."""

TEMPLATE = "shoal.dev/template"
"""Annotation with the template of a pod as JSON. So the same version can be launched again after
the operator changed the template."""

PRICE = "shoal.dev/price"
"""Annotation or label of a node: USD per hour."""

EXECUTOR = "shoal.dev/executor"
"""Label of a ShoalModel that an executor made: the id of this executor."""

DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
"""Annotation of a pod that the cluster autoscaler may evict although no ReplicaSet made it."""

_LONGEST = 63
_NOT_ALLOWED = re.compile(r"[^A-Za-z0-9._-]")
_OBJECT = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NOT_IN_NAMES = re.compile(r"[^a-z0-9-]+")


def label_value(text: str) -> str:
    """`text` if it is a valid label value, else `text` shortened and with a hash."""
    clean = _NOT_ALLOWED.sub(".", text).strip("._-")
    if clean == text and len(text) <= _LONGEST:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{clean[: _LONGEST - 9].strip('._-')}-{mark}".lstrip("-")


def pool_label(pool: str) -> str:
    """The label value of a pool id: "us/l4/spot" gives "us.l4.spot"."""
    return label_value(pool.replace("/", "."))


def object_name(text: str) -> str:
    """`text` if it is a valid object name, else `text` in lower case, shortened and with a hash:
    "Qwen/Qwen3-8B" gives "qwen-qwen3-8b-3a1f09c2"."""
    if _OBJECT.fullmatch(text) and len(text) <= _LONGEST:
        return text
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    slug = _NOT_IN_NAMES.sub("-", text.lower())[: _LONGEST - 9].strip("-")
    return f"{slug}-{mark}".lstrip("-")


def pod_name(instance: str, attempt: int) -> str:
    """The name of the pod of an instance's launch.

    The name follows from instance and attempt, so the same launch cannot create two pods.
    """
    mark = hashlib.sha256(instance.encode()).hexdigest()[:10]
    slug = _NOT_IN_NAMES.sub("-", instance.lower()).strip("-")[-30:].strip("-")
    return f"shoal-{slug}-{mark}-{attempt}" if slug else f"shoal-{mark}-{attempt}"
