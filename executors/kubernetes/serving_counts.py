"""Mode `observe`: counts the serving pods by model, role and pool. Pure, without any writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executors.kubernetes import kube_names as names
from executors.kubernetes.accelerators import count_accelerators
from executors.kubernetes.device_claims import ClaimView
from executors.kubernetes.kubernetes_config import KubePool
from executors.kubernetes.node_view import NodeView
from executors.kubernetes.pod_owner import PodOwners
from executors.kubernetes.pod_view import PodView
from executors.kubernetes.workload_view import WorkloadView

ROLE_LABELS = (names.ROLE, "llm-d.ai/role")
MODEL_LABELS = (names.MODEL, "llm-d.ai/model", "model")
"""Labels that name a pod's model and role: Shoal's, llm-d's, and that of vLLM's charts."""

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, order=True)
class Serving:
    """The key of a count. gpus: number of GPUs of one pod. pool: pool id, "unknown" if its node is
    in no pool. managed: whether Shoal made the pods or claimed them for instances of its plan."""

    model: str
    role: str
    pool: str
    gpus: int
    managed: bool = False


def count_serving(
    pods: Iterable[PodView],
    nodes: Mapping[str, NodeView],
    pools: Mapping[str, KubePool],
    workloads: Iterable[WorkloadView] = (),
    claims: Iterable[ClaimView] = (),
) -> dict[Serving, int]:
    """Ready pods with GPUs that name a model, by a workload's annotation or a label."""
    claimed = {one.name: one.accelerators for one in claims}
    owners = PodOwners(workloads)
    declared = {pool.gpu_resource for pool in pools.values()}
    found: Counter[Serving] = Counter()
    for pod in pods:
        gpus = count_accelerators(pod.devices, declared)
        gpus += sum(claimed.get(name, 0) for name in pod.claims)
        if not pod.serves or not gpus:
            continue
        owner = owners.owner(pod)
        model = owner.model if owner else _first(pod.labels, MODEL_LABELS)
        if not model:
            continue
        role = owner.role if owner else _first(pod.labels, ROLE_LABELS) or "aggregated"
        pool = pool_of(nodes.get(pod.node), pools)
        role = "aggregated" if role == "both" else role
        found[Serving(model, role, pool, gpus, names.INSTANCE in pod.labels)] += 1
    return dict(sorted(found.items()))


def pool_of(node: NodeView | None, pools: Mapping[str, KubePool]) -> str:
    """The pool of a node: of all pools whose labels the node has, the one with the most labels."""
    if node is None:
        return UNKNOWN
    fitting = [(len(one.nodes), pool) for pool, one in pools.items() if node.matches(one.nodes)]
    return max(fitting)[1] if fitting else UNKNOWN


def _first(labels: Mapping[str, str], keys: tuple[str, ...]) -> str:
    return next((labels[key] for key in keys if labels.get(key)), "")
