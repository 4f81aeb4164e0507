"""GPU memory: whether a model's layers and adapters fit a slice, and how many tokens of KV cache
fit in the remaining memory."""

from __future__ import annotations

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.model_spec import ModelSpec

# Memory per GPU for activations, communication buffers and the CUDA context, in 1e9 bytes.
_RESERVED_GB_PER_GPU = 1.5


def usable_gb(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    """Memory of `tp` GPUs for weights and KV cache of `model`, in 1e9 bytes."""
    return (gpu.mem_gb * model.memory_share - _RESERVED_GB_PER_GPU) * tp


def kv_capacity_tokens(model: ModelSpec, gpu: GpuSpec, tp: int, layers: int | None = None) -> float:
    """Tokens of KV cache that fit on `tp` GPUs with `layers` layers; 0 if the weights do not fit.

    With more GPUs than KV heads the cache is copied, so that it counts once per GPU (grouped-query
    attention). The state of one sequence is already subtracted; each further sequence takes
    `sequence_tokens` of the result.
    """
    held = model.layers if layers is None else layers
    share = held / model.layers
    held_bytes = (model.weight_bytes + model.state_bytes + adapter_bytes(model, tp)) * share
    free = usable_gb(model, gpu, tp) * 1e9 - held_bytes
    if free <= 0.0:
        return 0.0
    if model.kv_cache_bytes:
        free = min(free, model.kv_cache_bytes * tp)
    return free / (model.kv_bytes_per_token * share * _copies(model, tp))


def adapter_bytes(model: ModelSpec, tp: int) -> float:
    """Memory for the LoRA adapters of `model` on all of `tp` GPUs."""
    return model.adapter_bytes + model.adapter_copied_bytes * tp


def sequence_tokens(model: ModelSpec, tp: int) -> float:
    """Size of one sequence's state, in tokens of KV cache; 0 for models with attention only."""
    return model.state_bytes / (model.kv_bytes_per_token * _copies(model, tp))


def _copies(model: ModelSpec, tp: int) -> float:
    return max(1.0, tp / model.kv_heads)


def fits(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Whether the weights fit and leave room for at least one token of KV cache."""
    return kv_capacity_tokens(model, gpu, tp) >= 1.0
