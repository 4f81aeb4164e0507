"""Start-up time of an instance, from launch to ready.

The planner and the simulated engines both use this model, so the two agree. Pure Python. The
constants are assumptions between two published figures: Cauchy (sec. 3.5) counts 90 s from
provisioning to serving; Cornserve (appendix E, table 4) measures 106 s for a 7B model and 138 s for
a 32B model with a warm compilation cache, and 115 s and 185 s without this cache.
"""

from __future__ import annotations

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice

# Seconds to schedule the container on a ready node that has the image, and to join the network.
NODE_LAUNCH_S = 20.0
# Seconds for imports, process group, profiling run, cached compilation and graph capture.
ENGINE_BASE_S = 45.0
# Rate in 1e9 bytes/s of reading weights from local or network storage, in one stream per node.
LOAD_GB_PER_S = 2.0


def startup_s(model: ModelSpec, node: NodeSlice, layers: int = 0) -> float:
    """Seconds from the launch of `model` on `node` to ready: launch + weights / bandwidth + base.

    layers: number of layers that a pipeline stage loads, 0 = all.

    Weights are in 1e9 bytes (of the quantized model). The copy to the GPUs overlaps with reading,
    so it matters only if the PCIe links of the slice together are slower.
    """
    bandwidth_gb_s = min(LOAD_GB_PER_S, node.gpu.pcie_gb_s * node.gpus)
    weights_gb = model.weight_bytes / 1e9 * (layers / model.layers if layers else 1.0)
    return NODE_LAUNCH_S + weights_gb / bandwidth_gb_s + ENGINE_BASE_S
