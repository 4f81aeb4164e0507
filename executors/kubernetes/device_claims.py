"""Devices that pods hold through ResourceClaims (dynamic resource allocation). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from executors.kubernetes.kube_client import Manifest

_DRIVERS = frozenset({"gpu.nvidia.com", "gpu.amd.com", "gpu.intel.com", "gaudi.intel.com",
                      "tpu.google.com"})  # fmt: skip
"""The vendors' drivers of accelerators."""


@dataclass(frozen=True, slots=True)
class ClaimView:
    """One ResourceClaim. accelerators: number of those that it got."""

    name: str
    accelerators: int


def parse_device_claim(raw: Manifest) -> ClaimView:
    """The ResourceClaim in `raw`."""
    allocation = (raw.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    held = sum(one.get("driver") in _DRIVERS and not one.get("adminAccess") for one in results)
    return ClaimView(str(raw["metadata"]["name"]), held)
