"""Measured KV caches: which of them hold for a model's present settings, and which are plausible.

An engine states its KV cache when it starts (`performance.start_log`). The statement replaces the
prediction for the same model, GPU type, number of GPUs and settings.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from autoscaler.domain.hardware import GpuSpec
from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.memory import cache_of
from topics.engine_start import EngineStart

_ROUNDING = 0.99
"""Engines round the number of requests of maximal length, of which they hold at least one."""


@lru_cache(maxsize=1024)
def memory_digest(spec: ModelSpec) -> str:
    """Digest of everything in `spec` that determines the room on given GPUs. A measured room holds
    only for an equal digest."""
    copies = spec.state_copies if any(one.recurrent for one in spec.layers_by_cache) else 1
    facts = (
        spec.layers, spec.hidden, spec.vocab, spec.experts, spec.weight_dtype, spec.dense_bytes,
        spec.expert_bytes, spec.memory_share, spec.kv_bits, spec.kv_cache_bytes,
        spec.adapter_bytes, spec.adapter_copied_bytes, spec.max_seqs, spec.batched_tokens,
        spec.eager, copies, spec.pooling, len(spec.splits),
        tuple((one.count, one.window) for one in spec.layers_by_cache),
    )  # fmt: skip
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@lru_cache(maxsize=1024)
def with_rooms(spec: ModelSpec, rooms: tuple[MeasuredRoom, ...], max_len: int) -> ModelSpec:
    """`spec` with those of `rooms` that hold for it; later ones replace earlier ones.

    max_len: longest request with which the engine starts. If an engine refused such a request, or
    a shorter one, there is no room.
    """
    longest = min(max_len, spec.max_position)
    known = {(one.gpu, one.gpus): one for one in spec.rooms}
    for room in rooms:
        if room.arguments != memory_digest(spec):
            continue
        if 0 < room.refused_len <= longest:
            room = replace(room, kv_tokens=0.0, request_tokens=0, kv_bytes=0.0)
        elif not room.kv_tokens and not room.kv_bytes:
            continue  # refused for longer requests, without a figure
        known[room.gpu, room.gpus] = room
    return replace(spec, rooms=tuple(known[key] for key in sorted(known)))


def room_of(
    start: EngineStart, spec: ModelSpec, gpu: GpuSpec, gpus: int, max_len: int
) -> MeasuredRoom | None:
    """The room that `start` states for `spec` on `gpus` GPUs; None if it states none.

    max_len: longest request with which the engine starts, if the start does not state it. Raises
    InvalidValue for a room that the GPU cannot have, or that contradicts the start.
    """
    longest = start.max_len or min(max_len, spec.max_position)
    predicted = cache_of(replace(spec, rooms=()), gpu, gpus)
    tokens, each = start.kv_tokens, start.request_tokens
    one_kind = len(predicted.groups) == 1 and not predicted.groups[0].window
    if not tokens and start.blocks and one_kind and not predicted.fixed_blocks:
        tokens, each = start.blocks * start.block_tokens, longest
    if spec.pooling or not (tokens or start.kv_bytes or start.refused):
        return None
    refused = longest if start.refused else 0
    room = MeasuredRoom(
        gpu.name, gpus, memory_digest(spec), float(tokens), each if tokens else 0,
        float(start.kv_bytes), refused,
    )  # fmt: skip
    pool = cache_of(replace(spec, rooms=(room,)), gpu, gpus)
    most, used = gpu.mem_gb * 1e9, max(pool.blocks * pool.block_bytes, room.kv_bytes)
    if used > most:
        raise InvalidValue(
            "KV cache", f"{used / 1e9:.3g} GB per GPU", f"at most {most / 1e9:.3g} GB ({gpu.name})"
        )
    if tokens and not refused and tokens < _ROUNDING * longest:
        raise InvalidValue("KV cache", f"{tokens} tokens", f"at least {longest}, as it started")
    return room


def is_near(one: MeasuredRoom, other: MeasuredRoom, share: float) -> bool:
    """Whether both rooms say the same, with figures that differ by at most `share`."""
    same = (one.gpu, one.gpus, one.arguments, one.refused_len, one.request_tokens)
    if same != (other.gpu, other.gpus, other.arguments, other.refused_len, other.request_tokens):
        return False
    pairs = (one.kv_tokens, other.kv_tokens), (one.kv_bytes, other.kv_bytes)
    return all(abs(a - b) <= share * max(a, b) for a, b in pairs)


def lower_median(rooms: Iterable[MeasuredRoom]) -> MeasuredRoom:
    """The room in the middle of `rooms`, the smaller one of two."""
    ordered = sorted(rooms, key=lambda one: (one.kv_tokens, one.kv_bytes))
    return ordered[(len(ordered) - 1) // 2]
