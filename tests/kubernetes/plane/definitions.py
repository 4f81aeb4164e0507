"""Definitions of the kinds of LeaderWorkerSet and Karpenter, without their controllers."""

from __future__ import annotations

import asyncio
from typing import Any

from executors.kubernetes.kube_kinds import LEADER_WORKER_SET, NODE_CLAIM, NODE_OVERLAY, NODE_POOL
from tests.kubernetes.plane.raw_api import RawApi

CRDS = (
    (LEADER_WORKER_SET, "Namespaced"), (NODE_CLAIM, "Cluster"), (NODE_OVERLAY, "Cluster"),
    (NODE_POOL, "Cluster"),
)  # fmt: skip


async def install_definitions(admin: RawApi) -> None:
    """Install the definitions that are missing, and wait until the server knows them."""
    for kind, scope in CRDS:
        schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version: dict[str, Any] = {
            "name": kind.version, "served": True, "storage": True,
            "schema": {"openAPIV3Schema": schema},
        }  # fmt: skip
        if kind is LEADER_WORKER_SET:
            version["subresources"] = {
                "scale": {"specReplicasPath": ".spec.replicas",
                          "statusReplicasPath": ".status.replicas"}
            }  # fmt: skip
        names = {"plural": kind.plural, "kind": kind.kind, "singular": kind.kind.lower()}
        spec = {"group": kind.group, "scope": scope, "names": names, "versions": [version]}
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        name = f"{kind.plural}.{kind.group}"
        await admin.post(path, {"metadata": {"name": name}, "spec": spec})
    async with asyncio.timeout(30):
        for kind, _ in CRDS:
            prefix = f"/apis/{kind.group}/{kind.version}/{kind.plural}"
            while (await admin.call("GET", prefix))[0] != 200:
                await asyncio.sleep(0.2)
