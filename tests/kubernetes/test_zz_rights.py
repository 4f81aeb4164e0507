"""The rights of each account. A test of this folder uses every verb, and every other verb is
refused.

Runs last, because it reads the audit log of all tests before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from executors.kubernetes.cluster_report import report
from executors.kubernetes.kube_client import KubeClient
from executors.kubernetes.kube_kinds import (
    DEPLOYMENT,
    LEADER_WORKER_SET,
    NODE,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    POD,
    STATEFUL_SET,
    Kind,
)
from executors.kubernetes.kubernetes_config import KubePool, PoolMode
from executors.kubernetes.object_cache import ObjectCache
from tests.kubernetes.conftest import UsedRights
from tests.kubernetes.plane.control_plane import ACCOUNTS, ControlPlane
from tests.kubernetes.plane.definitions import install_definitions
from tests.kubernetes.plane.raw_api import RawApi

RBAC = Path(__file__).parents[2] / "deploy" / "kubernetes" / "rbac.yaml"
VERBS = ("get", "list", "watch", "create", "patch", "update", "delete", "deletecollection")
RESOURCES = {
    ("", "pods"), ("", "pods/eviction"), ("", "pods/status"), ("", "pods/exec"), ("", "secrets"),
    ("", "configmaps"), ("", "services"), ("", "serviceaccounts"), ("", "resourcequotas"),
    ("", "namespaces"),
    ("", "events"), ("apps", "deployments"), ("apps", "deployments/scale"),
    ("apps", "statefulsets"), ("apps", "statefulsets/scale"), ("apps", "replicasets"),
    ("apps", "daemonsets"), ("leaderworkerset.x-k8s.io", "leaderworkersets"),
    ("leaderworkerset.x-k8s.io", "leaderworkersets/scale"),
    ("autoscaling", "horizontalpodautoscalers"), ("policy", "poddisruptionbudgets"),
    ("rbac.authorization.k8s.io", "roles"), ("rbac.authorization.k8s.io", "rolebindings"),
    ("coordination.k8s.io", "leases"), ("batch", "jobs"), ("resource.k8s.io", "resourceclaims"),
    ("shoal.dev", "shoalmodels"), ("shoal.dev", "shoalmodels/status"),
}  # fmt: skip
CLUSTER = {
    ("", "nodes"), ("", "persistentvolumes"), ("karpenter.sh", "nodeclaims"),
    ("karpenter.sh", "nodeoverlays"), ("karpenter.sh", "nodepools"),
    ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"),
}  # fmt: skip


def granted(account: str) -> set[tuple[str, str, str]]:
    """(group, resource, verb) that rbac.yaml gives to an account."""
    manifests = list(yaml.safe_load_all(RBAC.read_text()))
    rules = {m["metadata"]["name"]: m["rules"] for m in manifests if "rules" in m}
    found = set()
    for binding in manifests:
        subjects = [subject["name"] for subject in binding.get("subjects", ())]
        if account in subjects:
            for rule in rules[binding["roleRef"]["name"]]:
                found |= set(_each(rule))
    return found


def _each(rule: Any) -> Iterator[tuple[str, str, str]]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                yield group, resource, verb


async def follow_all(api: KubeClient, kinds: Iterable[Kind]) -> None:
    """List and watch objects as an executor does."""
    caches = [ObjectCache(api, kind, lambda raw: raw) for kind in kinds]
    tasks = [asyncio.create_task(cache.run()) for cache in caches]
    async with asyncio.timeout(30):
        while not all(cache.synced for cache in caches):
            await asyncio.sleep(0.05)
    await asyncio.sleep(3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_every_granted_verb_is_used(
    plane: ControlPlane, admin: RawApi, used_rights: UsedRights
) -> None:
    await install_definitions(admin)
    kind = {"apiVersion": LEADER_WORKER_SET.api_version, "kind": LEADER_WORKER_SET.kind}
    workload = {**kind, "metadata": {"name": "lws"}, "spec": {"replicas": 1}}
    path = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/serving/leaderworkersets"
    await admin.post(path, workload)
    workloads = (DEPLOYMENT, STATEFUL_SET, LEADER_WORKER_SET)
    reads = (POD, NODE, NODE_CLAIM, NODE_OVERLAY, *workloads)
    limit = {"limits": {"nvidia.com/gpu": "6"}}
    await admin.post("/apis/karpenter.sh/v1/nodepools", {
        "apiVersion": NODE_POOL.api_version, "kind": NODE_POOL.kind,
        "metadata": {"name": "gpus"}, "spec": limit,
    })  # fmt: skip
    labels = {"karpenter.sh/nodepool": "gpus"}
    grows = {"r/p/on-demand": KubePool(PoolMode.OBSERVE, labels, node_wait_s=60.0)}
    free = '{\n  "r/p/on-demand": 3\n}\n'
    for account in ACCOUNTS:
        api = KubeClient(str(plane.kubeconfig(account)))
        api.open()
        await follow_all(api, reads)
        pools = {"r/p/owned": KubePool(PoolMode.OBSERVE, {"pool": "l4"})}
        assert await report("serving", api, pools, {}) == "[]\n"
        assert await report("prices", api, pools, {}) == "{}\n"
        assert await report("availability", api, grows, {"r/p/on-demand": 2}) == free
        if account == "shoal-scale":
            scale = await api.read_scale(LEADER_WORKER_SET, "lws")
            written = await api.write_scale(LEADER_WORKER_SET, "lws", 2, scale.version)
            assert written.replicas == 2
        await api.close()
    await admin.delete(f"{path}/lws")
    await admin.delete("/apis/karpenter.sh/v1/nodepools/gpus")
    for account in ACCOUNTS:
        unused = granted(account) - used_rights(account)
        for lower in ACCOUNTS[: ACCOUNTS.index(account)]:  # the same Role, used by its own tests
            unused -= granted(lower)
        assert not unused, (account, sorted(unused))


@pytest.mark.parametrize("account", ACCOUNTS)
async def test_every_other_verb_is_refused(
    plane: ControlPlane, admin: RawApi, account: str
) -> None:
    """The test asks the server's authorizer for every combination, in the namespace and in another
    one.
    """
    allowed = granted(account)
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    user = f"system:serviceaccount:serving:{account}"
    asked = [("serving", one) for one in RESOURCES] + [("", one) for one in CLUSTER]
    asked += [("kube-system", one) for one in RESOURCES]
    wrong, questions = [], 0
    for namespace, (group, resource) in asked:
        for verb in VERBS:
            name, _, part = resource.partition("/")
            about = {"namespace": namespace, "group": group, "resource": name,
                     "subresource": part, "verb": verb}  # fmt: skip
            review = {"spec": {"user": user, "resourceAttributes": about}}
            _, answer = await admin.call("POST", path, review)
            questions += 1
            expected = namespace != "kube-system" and (group, resource, verb) in allowed
            if answer["status"]["allowed"] is not expected:
                wrong.append((namespace, group, resource, verb))
    assert not wrong
    assert questions == len(asked) * len(VERBS)
    async with RawApi(plane.kubeconfig(account)) as api:
        code, _ = await api.call("GET", "/api/v1/namespaces/serving/secrets")
        assert code == 403
        code, _ = await api.call("DELETE", "/api/v1/nodes/none")
        assert code == 403
