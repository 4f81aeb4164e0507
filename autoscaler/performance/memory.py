"""Memory: whether a model's layers fit a slice and how many tokens of KV cache are left.

Owns the capacity formulas. Knows nothing of time.
"""

from __future__ import annotations

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec

# Activations, communication buffers and the CUDA context, per GPU, in 1e9 bytes.
_RESERVED_GB_PER_GPU = 1.5
_MEM_FRACTION = 0.9  # of each GPU's memory, what the engine may use


def usable_gb(gpu: GpuSpec, tp: int) -> float:
    """Memory of `tp` GPUs for weights and KV cache together, in 1e9 bytes."""
    return (gpu.mem_gb * _MEM_FRACTION - _RESERVED_GB_PER_GPU) * tp


def kv_capacity_tokens(model: ModelSpec, gpu: GpuSpec, tp: int, layers: int | None = None) -> float:
    """Tokens of KV cache that `tp` GPUs hold beside `layers` layers; 0 when the weights do not fit.

    Below one KV head per GPU the cache is copied, so it then counts once per GPU (grouped-query
    attention).
    """
    held = model.layers if layers is None else layers
    share = held / model.layers
    free = usable_gb(gpu, tp) * 1e9 - model.weight_bytes * share
    if free <= 0.0:
        return 0.0
    copies = max(1.0, tp / model.kv_heads)
    return free / (model.kv_bytes_per_token * share * copies)


def fits(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Whether the weights fit and leave room for a token of KV cache."""
    return kv_capacity_tokens(model, gpu, tp) >= 1.0
