"""Availability, prices and pools of a cluster, from its nodes and pods. Pure."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import yaml

from autoscaler.performance import catalog
from autoscaler.performance.catalog_names import instance_type
from autoscaler.performance.mig_profiles import is_slice
from executors.kubernetes import kube_names as names
from executors.kubernetes.accelerators import (
    AMD_GPU,
    INSTANCE_TYPE,
    NVIDIA_GPU,
    gpu_name,
    is_accelerator,
    is_mig,
    product_label,
)
from executors.kubernetes.kubernetes_config import KubePool
from executors.kubernetes.node_claims import (
    NodeOverlayView,
    NodePoolView,
    further_nodes,
    overlay_price,
)
from executors.kubernetes.node_view import SPOT_LABELS, NodeView, spot_label
from executors.kubernetes.pod_view import PodView

REGION = "topology.kubernetes.io/region"
_CAPACITY_TYPE, _SPOT, _ON_DEMAND = "karpenter.sh/capacity-type", "spot", "on-demand"
_LAST_LABELS = ("kubernetes.io/os", "kubernetes.io/hostname")
_UNNAMED = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME, _MOST_PER_NODE = 50, 16


def available_nodes(
    pools: Mapping[str, KubePool],
    per_node: Mapping[str, int],
    nodes: Iterable[NodeView],
    pods: Iterable[PodView],
    node_pools: Iterable[NodePoolView] = (),
) -> dict[str, int]:
    """Number of nodes that Shoal may use, by pool id: usable nodes whose GPUs no foreign pod holds.
    Each free MIG slice counts as a node. per_node: GPUs of a slot by pool id. If an
    autoscaler adds nodes to a pool, those that the limits of `node_pools` still allow count too.
    Without such limits the pool has no entry, because its present nodes are no limit.
    """
    foreign: Counter[tuple[str, str]] = Counter()
    for pod in pods:
        if pod.node and not pod.over and pod.labels.get(names.MANAGED) != "true":
            for resource, count in pod.devices.items():
                foreign[pod.node, resource] += count
    every, limited = list(nodes), list(node_pools)
    found = {}
    for pool, settings in pools.items():
        resource, further = settings.gpu_resource, 0
        if settings.node_wait_s:
            more = further_nodes(limited, settings.nodes, resource, per_node[pool])
            if more is None:
                continue
            further = more
        free = [
            max(0, node.devices.get(resource, 0) - foreign[node.name, resource]) // per_node[pool]
            for node in every
            if node.usable and node.matches(settings.nodes)
        ]
        present = sum(free) if is_mig(resource) else sum(slots > 0 for slots in free)
        found[pool] = present + further
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


_GroupKey = tuple[str, tuple[tuple[str, str], ...], str, int]


@dataclass(frozen=True, slots=True)
class FoundPool:
    """Nodes of one kind. gpu: name of their accelerator. count: nodes at present; of a slice, the
    slices of all nodes. price: USD per node and hour, None = unknown. refusal: the reason why a
    shoal.yaml cannot have the pool, "" = it can.
    """

    region: str
    name: str
    gpu: str
    resource: str
    per_node: int
    spot: bool
    nodes: Mapping[str, str]
    count: int
    price: float | None
    refusal: str = ""


def found_pools(nodes: Iterable[NodeView]) -> list[FoundPool]:
    """The pools of nodes with accelerators, by region, instance type, GPU and market."""
    groups: dict[_GroupKey, list[NodeView]] = {}
    for node in nodes:
        region = _UNNAMED.sub("-", node.labels.get(REGION, "")).strip("-._") or "cluster"
        for resource, count in sorted(node.devices.items()):
            if count and is_accelerator(resource):
                labels = tuple(_pool_labels(node, resource).items())
                groups.setdefault((region, labels, resource, count), []).append(node)
    return [
        _found_pool(region, resource, count, dict(labels), groups[region, labels, resource, count])
        for region, labels, resource, count in sorted(groups)
    ]


def empty_pools(
    node_pools: Iterable[NodePoolView],
    nodes: Iterable[NodeView],
    overlays: Iterable[NodeOverlayView] = (),
) -> list[FoundPool]:
    """The pools of GPU nodes that Karpenter may add and of which none is in `nodes`: one for each
    instance type and market that a NodePool names and the catalogue knows. count: nodes that the
    limits allow. A pool without a limit or a price has a refusal."""
    every, layers = list(nodes), list(overlays)
    known = {(n.labels.get(INSTANCE_TYPE), spot_label(n.labels) is not None) for n in every}
    regions = {n.labels[REGION] for n in every if n.labels.get(REGION)}
    found = []
    for node_pool in node_pools:
        allowed = node_pool.requirements.allowed
        own = allowed.get(REGION) or regions
        region = min(own) if len(own) == 1 else "cluster"
        markets = sorted({_SPOT, _ON_DEMAND} & allowed.get(_CAPACITY_TYPE, frozenset({_ON_DEMAND})))
        for kind, market in itertools.product(sorted(allowed.get(INSTANCE_TYPE, ())), markets):
            gpus = instance_type(kind)
            if gpus and (kind, market == _SPOT) not in known:
                known.add((kind, market == _SPOT))
                labels = {INSTANCE_TYPE: kind, _CAPACITY_TYPE: market}
                found.append(_empty_pool(node_pool, region, labels, gpus, layers))
    return found


def _empty_pool(
    node_pool: NodePoolView,
    region: str,
    labels: dict[str, str],
    gpus: tuple[str, int],
    overlays: list[NodeOverlayView],
) -> FoundPool:
    """gpus: type and number of the GPUs of a node."""
    resource = AMD_GPU if gpus[0].startswith("MI") else NVIDIA_GPU
    count, price = node_pool.further_nodes(resource, gpus[1]), overlay_price(overlays, labels)
    node = NodeView(node_pool.name, labels, devices={resource: gpus[1]}, price=price)
    pool = _found_pool(region, resource, gpus[1], labels, [node])
    lacks = [what for what, value in (("limit", count), ("price", price)) if value is None]
    why = f"NodePool {node_pool.name} has no node and no {' and no '.join(lacks)}" if lacks else ""
    if count == 0:
        why = f"the limits of NodePool {node_pool.name} allow no node"
    return replace(pool, count=count or 0, refusal=pool.refusal or why)


def _pool_labels(node: NodeView, resource: str) -> dict[str, str]:
    """The labels by which a pool selects nodes such as `node`."""
    keys = (INSTANCE_TYPE, product_label(resource, node.labels))
    labels = {key: node.labels[key] for key in keys if node.labels.get(key)}
    if not labels:
        key = next((key for key in _LAST_LABELS if node.labels.get(key)), "")
        labels = {key: node.labels[key]} if key else {}
    # Without the market, a pool of on-demand nodes would count spot nodes of the same kind too.
    market = spot_label(node.labels) or next(
        ((key, node.labels[key]) for key in SPOT_LABELS if node.labels.get(key)), None
    )
    return {**labels, **({market[0]: market[1]} if market else {})}


def _found_pool(
    region: str, resource: str, count: int, labels: dict[str, str], members: list[NodeView]
) -> FoundPool:
    gpu = gpu_name(resource, members[0].labels)
    slices = count if is_mig(resource) or (gpu and is_slice(catalog.gpu(gpu).name)) else 1
    per_node = count // slices
    price = max((one.price for one in members if one.price is not None), default=None)
    product = labels.get(product_label(resource, labels), "")
    title = labels.get(INSTANCE_TYPE, "") or product or resource.rpartition("/")[2]
    name = _UNNAMED.sub("-", title.lower()).replace(".", "-").replace("_", "-").strip("-")
    if is_mig(resource):
        name = f"{name}-{resource.rpartition('/')[2].replace('.', '-')}"
    spot = spot_label(labels) is not None
    each = None if price is None else price / slices
    refusal = _refusal(gpu, per_node, product, labels)
    return FoundPool(
        region, name, gpu, resource, per_node, spot, labels, len(members) * slices, each, refusal
    )


def _refusal(gpu: str, per_node: int, product: str, labels: Mapping[str, str]) -> str:
    if product.lower().endswith("-shared") or per_node > _MOST_PER_NODE:
        return "the GPUs are shared by time, and Shoal plans whole GPUs or MIG slices"
    if not gpu:
        return "the catalogue does not know the GPU (shoal catalogue gpus)"
    return "" if labels else "no label found that all of these nodes have"


def pools_yaml(pools: Iterable[FoundPool]) -> str:
    """The section `regions:` of a shoal.yaml for `pools`, in mode observe.

    A pool without a price is declared as owned, because rented nodes need a price. Pools that a
    shoal.yaml cannot have are comments.
    """
    lines, refused, region = ["regions:"], [], ""
    used: set[tuple[str, str]] = set()
    for pool in pools:
        if pool.refusal:
            where = ", ".join(f"{key}={value}" for key, value in pool.nodes.items()) or pool.region
            refused.append(f"# left out: {pool.resource} of {where}: {pool.refusal}")
            continue
        if pool.region != region:
            region = pool.region
            lines.append(f"  {_scalar(region)}:")
        name = _unused(f"{pool.name[:_LONGEST_NAME]}{'-spot' * pool.spot}", region, used)
        lines += [f"    {_scalar(name)}:", f"      gpu: {pool.gpu}"]
        lines += [f"      per_node: {pool.per_node}"]
        if pool.price is None:
            lines += ["      owned: true  # no price found", f"      nodes: {pool.count}"]
        else:
            key = "spot_price" if pool.spot else "price"
            price = f"{pool.price:.6f}".rstrip("0").rstrip(".")
            lines += [f"      max: {pool.count}", f"      {key}: {price}"]
        lines += ["      kubernetes:", "        mode: observe", "        nodes:"]
        lines += [f'          {key}: "{value}"' for key, value in pool.nodes.items()]
        if pool.resource != NVIDIA_GPU:
            lines.append(f"        gpu_resource: {pool.resource}")
    return "\n".join([*lines, *refused]) + "\n"


def _unused(name: str, region: str, used: set[tuple[str, str]]) -> str:
    """`name`, or `name` with the first free number; adds it to `used`."""
    unused, number = name, 2
    while (region, unused) in used:
        unused, number = f"{name}-{number}", number + 1
    used.add((region, unused))
    return unused


def _scalar(text: str) -> str:
    """`text` as a key that YAML reads as text."""
    return text if yaml.safe_load(text) == text else f'"{text}"'
