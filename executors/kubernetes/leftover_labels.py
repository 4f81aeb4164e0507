"""The labels and annotations by which mode `scale` claims a pod of another owner, and their removal
after the pool left this mode."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_kinds import POD
from executors.kubernetes.pod_fleet import PodFleet, persist


def without_claim(labels: Mapping[str, str]) -> Manifest:
    """The change of metadata that frees a pod with `labels`. A pod that left the routes returns."""
    claim: dict[str, str | None] = {names.SLOT: None, names.INSTANCE: None, names.GROUP: None}
    if labels.get(names.SERVING) == "draining":
        claim[names.SERVING] = "true"
    return {"labels": claim, "annotations": {names.LAUNCH: None, names.DELETION_COST: None}}


async def clear_leftovers(fleet: PodFleet, slots: Collection[str]) -> None:
    """Free the pods of other owners that are claimed for `slots`. Call once, for slots that are
    not in mode `scale`."""
    claimed = {names.label_value(slot) for slot in slots}
    listing = await persist(lambda: fleet.api.list_objects(POD, names.SLOT), "list of claimed pods")
    for raw in listing.objects:
        labels = raw["metadata"]["labels"]
        if labels.get(names.MANAGED) != "true" and labels[names.SLOT] in claimed:
            await fleet.mark_pod(str(raw["metadata"]["name"]), without_claim(labels))
