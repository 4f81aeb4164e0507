"""Karpenter's NodeClaims, which tell why no node is added, NodePools, which limit the nodes, and
NodeOverlays, which hold prices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from executors.kubernetes.kube_client import Manifest
from executors.kubernetes.kube_quantity import parse_quantity

_NODE_POOL = "karpenter.sh/nodepool"


@dataclass(frozen=True, slots=True)
class Requirements:
    """Allowed values by node label, from requirements with the operator In."""

    allowed: Mapping[str, frozenset[str]]

    def fit(self, labels: Mapping[str, str]) -> bool:
        """Whether nodes with `labels` may meet the requirements. Only labels that both name are
        compared; there must be at least one."""
        shared = [key for key in labels if key in self.allowed]
        return bool(shared) and all(labels[key] in self.allowed[key] for key in shared)


@dataclass(frozen=True, slots=True)
class NodeClaimView:
    """One NodeClaim. failure: the reason why the cloud provided no node, "" = it did, or the
    request is open."""

    name: str
    requirements: Requirements
    failure: str = ""


@dataclass(frozen=True, slots=True)
class NodeOverlayView:
    """One NodeOverlay with a price in USD per node and hour."""

    name: str
    requirements: Requirements
    price: float
    weight: int = 0


@dataclass(frozen=True, slots=True)
class NodePoolView:
    """One NodePool. room: amounts that its limits still allow, by resource name; "nodes" is the
    number of nodes."""

    name: str
    requirements: Requirements
    room: Mapping[str, float] = field(default_factory=dict)

    def further_nodes(self, resource: str, per_node: int) -> int | None:
        """Number of nodes with `per_node` of `resource` that may still be added, None = no limit is
        known. Karpenter adds none once any limit is reached."""
        if any(left <= 0 for left in self.room.values()):
            return 0
        counts = [int(self.room[key] // size) for key, size in ((resource, per_node), ("nodes", 1))
                  if key in self.room]  # fmt: skip
        return min(counts, default=None)


def parse_node_pool(raw: Manifest) -> NodePoolView:
    """The NodePool in `raw`."""
    name, spec = str(raw["metadata"]["name"]), raw.get("spec") or {}
    template, used = spec.get("template") or {}, (raw.get("status") or {}).get("resources") or {}
    labels = {_NODE_POOL: name, **((template.get("metadata") or {}).get("labels") or {})}
    fixed = {key: frozenset((str(value),)) for key, value in labels.items()}
    requirements = Requirements({**_requirements(template).allowed, **fixed})
    limits = spec.get("limits") or {}
    room = {
        key: float(parse_quantity(limit) - parse_quantity(used.get(key) or 0))
        for key, limit in limits.items()
    }
    return NodePoolView(name, requirements, room)


def further_nodes(
    pools: Iterable[NodePoolView], labels: Mapping[str, str], resource: str, per_node: int
) -> int | None:
    """Number of nodes with `labels` that Karpenter may still add, None = no NodePool limits it."""
    found = [one.further_nodes(resource, per_node) for one in pools if one.requirements.fit(labels)]
    known = [count for count in found if count is not None]
    return sum(known) if known and len(known) == len(found) else None


def parse_claim(raw: Manifest) -> NodeClaimView:
    """The NodeClaim in `raw`."""
    failure = ""
    for condition in (raw.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Launched" and condition.get("status") == "False":
            reason, message = condition.get("reason") or "", condition.get("message") or ""
            failure = f"{reason}: {message}" if message else str(reason or "not launched")
    return NodeClaimView(str(raw["metadata"]["name"]), _requirements(raw), failure)


def parse_overlay(raw: Manifest) -> NodeOverlayView | None:
    """The NodeOverlay in `raw`; None if it sets no price."""
    spec = raw.get("spec") or {}
    try:
        price = float(str(spec.get("price")))
    except ValueError:
        return None
    if not 0.0 <= price <= 1e6:
        return None
    name, weight = str(raw["metadata"]["name"]), int(spec.get("weight") or 0)
    return NodeOverlayView(name, _requirements(raw), price, weight)


def supply_fault(claims: Iterable[NodeClaimView], labels: Mapping[str, str]) -> str:
    """The reason why no node with `labels` is added, "" if no claim for such a node failed."""
    for claim in sorted(claims, key=lambda one: one.name):
        if claim.failure and claim.requirements.fit(labels):
            return f"NodeClaim {claim.name}: {claim.failure}"
    return ""


def overlay_price(overlays: Iterable[NodeOverlayView], labels: Mapping[str, str]) -> float | None:
    """The price of nodes with `labels` by the overlay of the highest weight; None if no overlay
    names them."""
    fitting = [one for one in overlays if one.requirements.fit(labels)]
    best = max(fitting, key=lambda one: (one.weight, one.name), default=None)
    return None if best is None else best.price


def _requirements(raw: Manifest) -> Requirements:
    found: dict[str, frozenset[str]] = {}
    items: Iterable[Mapping[str, Any]] = (raw.get("spec") or {}).get("requirements") or ()
    for item in items:
        if item.get("operator") == "In":
            found[str(item.get("key"))] = frozenset(str(v) for v in item.get("values") or ())
    return Requirements(found)
