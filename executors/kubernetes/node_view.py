"""The facts about a node that this package needs, parsed from the server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_quantity import device_counts

RECLAIM_TAINTS = frozenset(
    {
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "node.cloudprovider.kubernetes.io/shutdown",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "kubernetes.azure.com/scheduled-event",
    }
)
"""Taints by which autoscalers and clouds announce that a node will be removed."""


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. usable: whether it is Ready and schedulable. reclaim: the taint that announces its
    removal, else "". devices: allocatable devices by resource name. price: USD per hour, None = not
    declared."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    usable: bool = True
    reclaim: str = ""
    devices: Mapping[str, int] = field(default_factory=dict)
    price: float | None = None

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the node has all of `labels`."""
        return all(self.labels.get(key) == value for key, value in labels.items())


def parse_node(raw: Manifest) -> NodeView:
    """The node in `raw`."""
    meta, spec, status = raw["metadata"], raw.get("spec") or {}, raw.get("status") or {}
    conditions = status.get("conditions") or ()
    ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)
    taints = [str(taint.get("key")) for taint in spec.get("taints") or ()]
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    return NodeView(
        name=str(meta["name"]),
        labels=dict(labels),
        usable=ready and not spec.get("unschedulable"),
        reclaim=next((key for key in taints if key in RECLAIM_TAINTS), ""),
        devices=device_counts(status.get("allocatable") or {}),
        price=_price(annotations.get(names.PRICE) or labels.get(names.PRICE)),
    )


def _price(text: object) -> float | None:
    try:
        price = float(str(text))
    except ValueError:
        return None
    return price if 0.0 <= price <= 1e6 else None
