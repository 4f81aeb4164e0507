"""GPU memory: whether a model's layers and adapters fit a slice, and the KV cache in the remaining
memory."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.performance.engine_overhead import batched_tokens, overhead_bytes
from autoscaler.performance.kv_pool import KvPool, kv_pool


def usable_gb(model: ModelSpec, gpu: GpuSpec, tp: int) -> float:
    """Memory of `tp` GPUs for weights and KV cache of `model`, in 1e9 bytes."""
    return (gpu.mem_gb * model.memory_share - overhead_bytes(model, gpu, tp) / 1e9) * tp


@lru_cache(maxsize=4096)
def cache_of(model: ModelSpec, gpu: GpuSpec, tp: int, layers: int | None = None) -> KvPool:
    """The KV cache of `model` on `tp` GPUs of type `gpu` that hold `layers` of its layers (None:
    all), as measured at a start if it was; no blocks if the weights do not fit."""
    room = model.room(gpu.name, tp) if layers is None else None
    if room is not None:
        return _measured(cache_of(replace(model, rooms=()), gpu, tp), room)
    share = (model.layers if layers is None else layers) / model.layers
    held = (model.weight_bytes + adapter_bytes(model, tp)) * share
    each = max(0.0, usable_gb(model, gpu, tp) * 1e9 - held) / tp
    if model.kv_cache_bytes:
        each = min(each, model.kv_cache_bytes)
    in_flight = batched_tokens(model, gpu)
    stored, token_bytes = model.layers_by_cache, model.kv_bytes_per_token
    return kv_pool(stored, token_bytes, each, tp, in_flight, share, model.state_copies)


def _measured(predicted: KvPool, room: MeasuredRoom) -> KvPool:
    """The pool `predicted` with as many blocks as `room` states."""
    blocks = float(room.kv_bytes // predicted.block_bytes)
    if room.kv_tokens:
        each = predicted.sequence_blocks(room.request_tokens, predicted.in_flight)
        blocks = room.kv_tokens / room.request_tokens * each
    return replace(predicted, blocks=blocks)


@lru_cache(maxsize=8192)
def kv_capacity_tokens(model: ModelSpec, gpu: GpuSpec, tp: int, layers: int | None = None) -> float:
    """Tokens of the longest sequence whose KV cache fits on `tp` GPUs with `layers` layers; 0 if
    the weights do not fit."""
    return cache_of(model, gpu, tp, layers).longest_tokens()


def adapter_bytes(model: ModelSpec, tp: int) -> float:
    """Memory for the LoRA adapters of `model` on all of `tp` GPUs."""
    return model.adapter_bytes + model.adapter_copied_bytes * tp


def fits(model: ModelSpec, gpu: GpuSpec, tp: int) -> bool:
    """Whether the weights fit and leave room for at least one token of KV cache."""
    return kv_capacity_tokens(model, gpu, tp) >= 1.0
