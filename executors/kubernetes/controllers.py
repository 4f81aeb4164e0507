"""The controller that made an object, as its metadata names it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

Ref = tuple[str, str, str]
"""API group ("" for the core group), kind and name of an object in the namespace."""

_OF_REPLICA_SETS = {
    "pod-template-hash": ("apps", "Deployment"),
    "rollouts-pod-template-hash": ("argoproj.io", "Rollout"),
}
"""Owner of a ReplicaSet by the label that the owner gives to its pods. The name of the ReplicaSet
is the owner's name, a dash and the value of this label."""


def controller_of(meta: Mapping[str, object]) -> Ref | None:
    """The controller in an object's metadata, None if it has none. A ReplicaSet with an owner is
    replaced by this owner."""
    references = meta.get("ownerReferences")
    for one in references if isinstance(references, list) else ():
        if one.get("controller"):
            group, slash, _ = str(one.get("apiVersion") or "").partition("/")
            ref = (group if slash else "", str(one.get("kind")), str(one.get("name")))
            return _owner_of_replica_set(ref, meta.get("labels")) or ref
    return None


def _owner_of_replica_set(ref: Ref, labels: object) -> Ref | None:
    if ref[:2] != ("apps", "ReplicaSet") or not isinstance(labels, dict):
        return None
    for label, (group, kind) in _OF_REPLICA_SETS.items():
        name = ref[2].removesuffix(f"-{labels.get(label)}")
        if name != ref[2]:
            return group, kind, name
    return None
