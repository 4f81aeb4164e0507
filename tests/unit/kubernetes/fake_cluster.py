"""An in-memory API server with the interface of `KubeApi`, and a kubelet that the test controls."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Mapping
from typing import Any

from executors.kubernetes.kube_client import Change, Listing, Manifest, Scale
from executors.kubernetes.kube_errors import (
    Conflict,
    Expired,
    NotFound,
    Temporary,
    kube_error,
)
from executors.kubernetes.kube_kinds import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    POD,
    SCALABLE,
    STATEFUL_SET,
    Kind,
)


def merge(into: Any, change: Any) -> Any:
    """A JSON merge patch (RFC 7396)."""
    if not isinstance(change, dict):
        return copy.deepcopy(change)
    found = dict(into) if isinstance(into, dict) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


class FakeCluster:
    """Objects by kind and name. down: whether every request fails as if the server were away.

    writes: all accepted or refused writes, as (verb, plural, name). quota: maximum number of pods;
    None = no quota. no_right: plurals of the kinds that may not be read by name.
    """

    namespace = "serving"

    def __init__(self) -> None:
        own = {"name": self.namespace, "uid": "uid-namespace"}
        self.objects: dict[tuple[str, str], Manifest] = {
            ("namespaces", self.namespace): {"metadata": own}
        }
        self.down = False
        self.quota: int | None = None
        self.lost_answers = 0  # The next writes succeed, but their answers are lost.
        self.no_right: set[str] = set()
        self.writes: list[tuple[str, str, str]] = []
        self._versions = itertools.count(11)
        self._version = 10
        self._history: list[tuple[int, str, Change]] = []
        self._oldest = 0
        self._news = asyncio.Event()

    # -- what the test does to the cluster -----------------------------------------------------

    def put(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Store an object as another client would."""
        name = manifest["metadata"]["name"]
        version = next(self._versions)
        stored = copy.deepcopy(manifest)
        stored["metadata"]["resourceVersion"] = str(version)
        stored["metadata"].setdefault("uid", f"uid-{version}")
        if kind is POD:
            self._complete_pod(stored["metadata"])
        self.objects[kind.plural, name] = stored
        self._tell(version, kind, Change(stored, False))
        for pod in self.names(POD) if kind in SCALABLE else ():
            if "ownerReferences" not in self.objects["pods", pod]["metadata"]:
                self.change(POD, pod, {})
        return stored

    def change(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        """Merge `change` into an object."""
        return self.put(kind, merge(self.objects[kind.plural, name], change))

    def remove(self, kind: Kind, name: str) -> None:
        """Remove an object for good."""
        gone = self.objects.pop((kind.plural, name))
        version = next(self._versions)
        gone["metadata"]["resourceVersion"] = str(version)
        self._tell(version, kind, Change(gone, True))

    def run_pod(self, name: str, ip: str = "10.0.0.1", node: str = "n0") -> None:
        """Schedule and start a pod; it is Ready."""
        ready = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "podIP": ip, "conditions": ready}
        self.change(POD, name, {"spec": {"nodeName": node}, "status": status})

    def refuse_pod(self, name: str, message: str) -> None:
        """The scheduler finds no node for a pod."""
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"phase": "Pending", "conditions": [{**condition, "message": message}]}
        self.change(POD, name, {"status": status})

    def forget_history(self) -> None:
        """Older versions expire."""
        self._oldest = self._version + 1
        self._news.set()

    def names(self, kind: Kind) -> list[str]:
        """Names of all objects of a kind, sorted."""
        return sorted(name for plural, name in self.objects if plural == kind.plural)

    # -- KubeApi -------------------------------------------------------------------------------

    async def list_objects(self, kind: Kind, labels: str = "", everywhere: bool = False) -> Listing:
        self._check()
        found = [
            copy.deepcopy(item)
            for (plural, _), item in self.objects.items()
            if plural == kind.plural and _matches(item, labels)
        ]
        return Listing(tuple(found), str(self._version))

    async def watch(
        self, kind: Kind, version: str, labels: str, limit_s: int, everywhere: bool = False
    ) -> AsyncIterator[Change]:
        after = int(version)
        while True:
            self._check()
            if after < self._oldest:
                raise Expired(410, "Expired", "too old resource version")
            news = [item for item in self._history if item[0] > after and item[1] == kind.plural]
            for at, _, change in news:
                after = at
                if _matches(change.object, labels):
                    yield copy.deepcopy(change)
            if not news:
                self._news.clear()
                await self._news.wait()

    async def read(self, kind: Kind, name: str) -> Manifest:
        self._check()
        if kind.plural in self.no_right:
            raise kube_error(403, "Forbidden", f"cannot get resource {kind.plural}")
        return copy.deepcopy(self._existing(kind, name))

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        self._check()
        self.writes.append(("create", kind.plural, name))
        if (kind.plural, name) in self.objects:
            raise Conflict(409, "AlreadyExists", f"{name} already exists")
        if self.quota is not None and len(self.names(kind)) >= self.quota:
            raise kube_error(403, "Forbidden", "exceeded quota: gpus, requested: 1, used: 0")
        return self._answer(self.put(kind, manifest))

    async def patch(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        self._check()
        self.writes.append(("patch", kind.plural, name))
        stored = self._existing(kind, name)["metadata"]["resourceVersion"]
        if change.get("metadata", {}).get("resourceVersion", stored) != stored:
            raise Conflict(409, "Conflict", f"{name} has been modified")
        return self._answer(self.change(kind, name, change))

    async def patch_status(self, kind: Kind, name: str, change: Mapping[str, Any]) -> Manifest:
        return await self.patch(kind, name, change)

    async def delete(self, kind: Kind, name: str, grace_s: int) -> None:
        self._check()
        self.writes.append(("delete", kind.plural, name))
        found = self._existing(kind, name)
        if kind is POD and (found.get("spec") or {}).get("nodeName"):
            meta = {"deletionTimestamp": "2026-01-01T00:00:00Z",
                    "deletionGracePeriodSeconds": grace_s}  # fmt: skip
            self.change(kind, name, {"metadata": meta})
        else:
            self.remove(kind, name)

    async def read_scale(self, kind: Kind, name: str) -> Scale:
        self._check()
        found = self._existing(kind, name)
        selector = (found.get("status") or {}).get("selector", "")
        return Scale(found["spec"]["replicas"], found["metadata"]["resourceVersion"], selector)

    async def write_scale(self, kind: Kind, name: str, replicas: int, version: str) -> Scale:
        self._check()
        self.writes.append(("scale", kind.plural, name))
        if self._existing(kind, name)["metadata"]["resourceVersion"] != version:
            raise Conflict(409, "Conflict", "the object has been modified")
        stored = self._answer(self.change(kind, name, {"spec": {"replicas": replicas}}))
        return Scale(replicas, stored["metadata"]["resourceVersion"])

    async def close(self) -> None:
        pass

    # -- inside --------------------------------------------------------------------------------

    def _complete_pod(self, meta: Manifest) -> None:
        """Complete the metadata of a pod as controllers would: a pod that names no controller gets
        that of the workload that selects it, and pods of a ReplicaSet get the label of its owner.
        A pod with an empty list of owners stays without one."""
        labels = meta.setdefault("labels", {})
        if "ownerReferences" not in meta:
            owner = self._selecting(labels)
            if owner is not None:
                meta["ownerReferences"] = [{**owner, "controller": True}]
        for one in meta.get("ownerReferences") or ():
            if one["kind"] == "ReplicaSet":
                one.setdefault("apiVersion", "apps/v1")
                labels.setdefault("pod-template-hash", one["name"].rpartition("-")[2])

    def _selecting(self, labels: Mapping[str, str]) -> dict[str, str] | None:
        kinds = {one.plural: one for one in (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)}
        for (plural, name), item in self.objects.items():
            if plural in kinds and _selects(plural, item, labels):
                kind = kinds[plural]
                owner = {"apiVersion": kind.api_version, "kind": kind.kind, "name": name}
                if kind is DEPLOYMENT:
                    owner |= {"kind": "ReplicaSet", "name": f"{name}-5d8f"}
                return owner
        return None

    def _check(self) -> None:
        if self.down:
            raise Temporary(0, "Unreachable", "connection refused")

    def _answer(self, stored: Manifest) -> Manifest:
        if self.lost_answers:
            self.lost_answers -= 1
            raise Temporary(0, "Unreachable", "the answer was lost")
        return copy.deepcopy(stored)

    def _existing(self, kind: Kind, name: str) -> Manifest:
        try:
            return self.objects[kind.plural, name]
        except KeyError:
            raise NotFound(404, "NotFound", f"{name} not found") from None

    def _tell(self, version: int, kind: Kind, change: Change) -> None:
        self._version = version
        self._history.append((version, kind.plural, copy.deepcopy(change)))
        self._news.set()


def _matches(item: Manifest, labels: str) -> bool:
    present = item["metadata"].get("labels") or {}
    for part in labels.split(",") if labels else ():
        key, equals, value = part.partition("=")
        if key not in present or (equals and present[key] != value):
            return False
    return True


def _selects(plural: str, workload: Manifest, labels: Mapping[str, str]) -> bool:
    """Whether the controller of `workload` would take over a pod with `labels`."""
    if plural == LEADER_WORKER_SET.plural:
        worker = labels.get("leaderworkerset.sigs.k8s.io/worker-index", "0") != "0"
        name = labels.get("leaderworkerset.sigs.k8s.io/name")
        return not worker and name == workload["metadata"]["name"]
    selector = (workload.get("spec") or {}).get("selector") or {}
    exact = selector.get("matchLabels") or {}
    sets = selector.get("matchExpressions") or []
    return (
        bool(exact or sets)
        and all(labels.get(k) == v for k, v in exact.items())
        and all(_meets(one, labels) for one in sets)
    )


def _meets(part: Manifest, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(part["key"]), part.get("values") or []
    return {
        "In": value in values, "NotIn": value not in values,
        "Exists": value is not None, "DoesNotExist": value is None,
    }[part["operator"]]  # fmt: skip
