"""The labels and annotations by which mode `scale` claims a pod of another owner, and their removal
when the claim ends."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import KubeApi, Manifest
from executors.kubernetes.kube_errors import NotFound
from executors.kubernetes.kube_kinds import POD


def without_claim(labels: Mapping[str, str]) -> Manifest:
    """The change of metadata that frees a pod with `labels`. A pod that left the routes returns."""
    claim: dict[str, str | None] = {names.SLOT: None, names.INSTANCE: None, names.GROUP: None}
    if labels.get(names.SERVING) == "draining":
        claim[names.SERVING] = "true"
    return {"labels": claim, "annotations": {names.LAUNCH: None, names.DELETION_COST: None}}


async def release_pods(api: KubeApi) -> list[str]:
    """Free all claimed pods of other owners in the namespace; returns their names. Call while no
    executor acts there: it would claim them again. Raises KubeError."""
    freed = []
    for raw in (await api.list_objects(POD, names.SLOT)).objects:
        meta = raw["metadata"]
        if meta["labels"].get(names.MANAGED) != "true":
            with contextlib.suppress(NotFound):
                change = {"metadata": without_claim(meta["labels"])}
                await api.patch(POD, str(meta["name"]), change)
                freed.append(str(meta["name"]))
    return sorted(freed)
