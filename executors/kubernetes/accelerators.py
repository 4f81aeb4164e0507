"""Accelerators: their resource names by vendor, and the GPU that a node's labels name. Pure.

Other extended resources, such as RDMA ports (rdma/ib), EFA and network interfaces, are none.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping

from autoscaler.performance import catalog
from autoscaler.performance.mig_profiles import is_slice
from autoscaler.serving.engine_setup import InvalidValue

NVIDIA_GPU = "nvidia.com/gpu"
AMD_GPU = "amd.com/gpu"
INSTANCE_TYPE = "node.kubernetes.io/instance-type"

_ACCELERATOR = re.compile(
    r"nvidia\.com/(?:gpu|mig-[\w.+-]+)"
    r"|amd\.com/(?:gpu|[sdqtc]px_nps[1248])"
    r"|gpu\.intel\.com/(?:i915|xe)"
    r"|habana\.ai/gaudi"
    r"|google\.com/tpu"
)
_MIG = re.compile(r"nvidia\.com/mig-(\dg\.\d+gb)")
_PRODUCTS = {
    "nvidia.com": ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator"),
    "amd.com": ("amd.com/gpu.product-name", "beta.amd.com/gpu.product-name"),
    "gpu.intel.com": ("gpu.intel.com/product",),
}
"""Labels that name the GPU of a node, by the domain of its resource."""


def is_accelerator(resource: str) -> bool:
    """Whether the resource called `resource` is an accelerator, or a part of one."""
    return _ACCELERATOR.fullmatch(resource) is not None


def is_mig(resource: str) -> bool:
    """Whether `resource` is a MIG slice. Slices of one node are independent of each other."""
    return _MIG.match(resource) is not None


def count_accelerators(devices: Mapping[str, int], declared: Collection[str] = ()) -> int:
    """Number of accelerators among `devices`. declared: further resources that are accelerators,
    because a pool names them."""
    return sum(n for name, n in devices.items() if is_accelerator(name) or name in declared)


def product_label(resource: str, labels: Mapping[str, str]) -> str:
    """The label that names the GPU behind `resource`, "" if the node has none."""
    known = _PRODUCTS.get(resource.partition("/")[0], ())
    return next((label for label in known if labels.get(label)), "")


def gpu_name(resource: str, labels: Mapping[str, str]) -> str:
    """The name of the accelerator `resource` of a node, as the catalogue accepts it; "" if the
    catalogue does not know it."""
    for name in _names(resource, labels):
        try:
            found = catalog.gpu(name).name
        except InvalidValue:
            continue
        if is_slice(found) or not is_mig(resource):
            return name
    return ""


def _names(resource: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Possible names, the most exact first."""
    if resource.startswith("amd.com/") and not resource.endswith("/gpu"):
        return  # a partition of a GPU, which the catalogue does not describe
    whole = [labels.get(product_label(resource, labels), "")]
    with contextlib.suppress(InvalidValue):
        whole.append(catalog.gpu(labels.get(INSTANCE_TYPE, "")).name)
    mig = _MIG.match(resource)
    if mig:
        yield labels.get(f"{resource}.product", "")
    yield from (f"{name}-MIG-{mig[1]}" if mig and name else name for name in whole)
