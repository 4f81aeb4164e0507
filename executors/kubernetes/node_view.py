"""The facts about a node that this package needs, parsed from the server's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from executors.kubernetes import kube_names as names
from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_quantity import device_counts

RECLAIM_TAINTS = frozenset(
    {
        "node.cloudprovider.kubernetes.io/shutdown",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "aws-node-termination-handler/asg-lifecycle-termination",
        "remediator.kubernetes.azure.com/unschedulable",
        "kubernetes.azure.com/scheduled-event",
    }
)
"""Taints by which clouds announce that a node will be gone soon."""

MAINTENANCE_TAINTS = frozenset(
    {
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "aws-node-termination-handler/scheduled-maintenance",
        "aws-node-termination-handler/rebalance-recommendation",
    }
)
"""Taints by which autoscalers and clouds ask for a node, and wait for its pods."""

SPOT_LABELS = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
}
"""Labels by which clouds and autoscalers mark spot nodes."""

CORDONED = "cordoned"


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node. usable: whether it is Ready and schedulable. notice: the reason why pods must leave
    it (a taint, or `CORDONED`), else "". waits: whether the node stays until its pods have left;
    never if it is a spot node, because a cordon may be all that announces an interruption. devices:
    allocatable devices by resource name. price: USD per hour, None = not declared."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    usable: bool = True
    notice: str = ""
    waits: bool = False
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
    cordoned = bool(spec.get("unschedulable"))
    taints = [str(taint.get("key")) for taint in spec.get("taints") or ()]
    urgent = [key for key in taints if key in RECLAIM_TAINTS]
    planned = [key for key in taints if key in MAINTENANCE_TAINTS] + [CORDONED] * cordoned
    notice = next(iter(urgent + planned), "")
    labels, annotations = meta.get("labels") or {}, meta.get("annotations") or {}
    return NodeView(
        name=str(meta["name"]),
        labels=dict(labels),
        usable=ready and not notice,
        notice=notice,
        waits=bool(notice) and not urgent and spot_label(labels) is None,
        devices=device_counts(status.get("allocatable") or {}),
        price=_price(annotations.get(names.PRICE) or labels.get(names.PRICE)),
    )


def spot_label(labels: Mapping[str, str]) -> tuple[str, str] | None:
    """The label that marks a spot node, None if none does."""
    return next(((k, v) for k, v in SPOT_LABELS.items() if labels.get(k) == v), None)


def _price(text: object) -> float | None:
    try:
        price = float(str(text))
    except ValueError:
        return None
    return price if 0.0 <= price <= 1e6 else None
