"""Availability, prices and pools of a cluster, from its nodes and pods. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from executors.kubernetes import kube_names as names
from executors.kubernetes.kubernetes_config import KubePool
from executors.kubernetes.node_claims import NodeOverlayView, overlay_price
from executors.kubernetes.node_view import NodeView
from executors.kubernetes.pod_view import PodView

INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU_PRODUCT = "nvidia.com/gpu.product"
REGION = "topology.kubernetes.io/region"
SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels by which clouds and autoscalers mark spot nodes."""


def available_nodes(
    pools: Mapping[str, KubePool],
    per_node: Mapping[str, int],
    nodes: Iterable[NodeView],
    pods: Iterable[PodView],
) -> dict[str, int]:
    """Number of nodes that Shoal may use, by pool id: usable nodes whose GPUs no foreign pod holds.
    per_node: GPUs of a slot by pool id. A pool to which an autoscaler adds nodes has no entry,
    because its present nodes are no limit.
    """
    foreign: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if pod.node and not pod.over and pod.labels.get(names.MANAGED) != "true":
            for resource, count in pod.gpus.items():
                foreign[pod.node, resource] += count
    every = list(nodes)
    found = {}
    for pool, settings in pools.items():
        if settings.node_wait_s:
            continue
        resource = settings.gpu_resource
        found[pool] = sum(
            node.usable
            and not node.reclaim
            and node.matches(settings.nodes)
            and node.devices.get(resource, 0) - foreign[node.name, resource] >= per_node[pool]
            for node in every
        )
    return found


def node_prices(
    pools: Mapping[str, KubePool],
    nodes: Iterable[NodeView],
    overlays: Iterable[NodeOverlayView],
) -> dict[str, float]:
    """USD per node and hour by pool id, from the annotation of its nodes (the highest value if they
    differ), else from a NodeOverlay. A pool without a price has no entry."""
    every, layers = list(nodes), list(overlays)
    found = {}
    for pool, settings in pools.items():
        declared = [n.price for n in every if n.price is not None and n.matches(settings.nodes)]
        price = max(declared) if declared else overlay_price(layers, settings.nodes)
        if price is not None:
            found[pool] = price
    return found


@dataclass(frozen=True, slots=True)
class FoundPool:
    """Nodes of one kind. gpu: instance type, or the product that the GPU driver reports. count:
    nodes at present. price: USD per node and hour, None = unknown."""

    region: str
    name: str
    gpu: str
    resource: str
    per_node: int
    spot: bool
    nodes: Mapping[str, str]
    count: int
    price: float | None


def found_pools(nodes: Iterable[NodeView]) -> list[FoundPool]:
    """The pools of GPU nodes in a cluster, by region, instance type, GPU and market."""
    groups: dict[tuple[str, str, str, str, int, tuple[str, str] | None], list[NodeView]] = {}
    for node in nodes:
        for resource, count in sorted(node.devices.items()):
            if count:
                spot = next(
                    ((k, v) for k, v in SPOT_LABELS.items() if node.labels.get(k) == v), None
                )
                key = (
                    node.labels.get(REGION, "cluster"), node.labels.get(INSTANCE_TYPE, ""),
                    node.labels.get(GPU_PRODUCT, ""), resource, count, spot,
                )  # fmt: skip
                groups.setdefault(key, []).append(node)
    found = []
    for (region, kind, product, resource, count, spot), members in sorted(
        groups.items(), key=lambda pair: str(pair[0])
    ):
        labels = {
            key: value for key, value in ((INSTANCE_TYPE, kind), (GPU_PRODUCT, product)) if value
        }
        if spot is not None:
            labels[spot[0]] = spot[1]
        prices = [node.price for node in members if node.price is not None]
        title = kind or product or resource.rpartition("/")[2]
        found.append(
            FoundPool(
                region, names.label_value(title.lower()).replace(".", "-").replace("_", "-"),
                product or kind or "unknown", resource, count, spot is not None, labels,
                len(members), max(prices, default=None),
            )
        )  # fmt: skip
    return found


def pools_yaml(pools: Iterable[FoundPool]) -> str:
    """The section `regions:` of a shoal.yaml for `pools`, in mode observe.

    A pool without a price is declared as owned, because rented nodes need a price.
    """
    lines, region = ["regions:"], ""
    used: Counter[tuple[str, str]] = Counter()
    for pool in pools:
        if pool.region != region:
            region = pool.region
            lines.append(f"  {region}:")
        name = f"{pool.name}-spot" if pool.spot else pool.name
        used[region, name] += 1
        if used[region, name] > 1:
            name = f"{name}-{used[region, name]}"
        lines += [f"    {name}:", f"      gpu: {pool.gpu}", f"      per_node: {pool.per_node}"]
        if pool.price is None:
            lines += ["      owned: true  # no price found", f"      nodes: {pool.count}"]
        else:
            key = "spot_price" if pool.spot else "price"
            lines += [f"      max: {pool.count}", f"      {key}: {pool.price:g}"]
        lines += ["      kubernetes:", "        mode: observe", "        nodes:"]
        lines += [f'          {key}: "{value}"' for key, value in pool.nodes.items()]
        if not pool.nodes:
            lines.append("          # no label found: name one that all of these nodes have")
        if pool.resource != "nvidia.com/gpu":
            lines.append(f"        gpu_resource: {pool.resource}")
    return "\n".join(lines) + "\n"
