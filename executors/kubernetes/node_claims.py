"""Karpenter's NodeClaims, which tell why no node is added, and NodeOverlays, which hold prices.
Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from executors.kubernetes.kube_client import Manifest


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
