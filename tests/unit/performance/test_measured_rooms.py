"""KV caches that engines had at their starts replace the predicted ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.measured_room import MeasuredRoom
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.measured_rooms import memory_digest, room_of, with_rooms
from autoscaler.performance.memory import cache_of, kv_capacity_tokens
from topics.engine_start import EngineStart

LLAMA = catalog.model("meta-llama/Llama-3.1-8B-Instruct")
GEMMA = catalog.model("google/gemma-3-27b-it")  # most layers keep a window
H100 = catalog.gpu("H100")
LENGTH = 32_768


def measured(start: EngineStart, spec: catalog.ModelSpec = LLAMA, gpus: int = 1) -> float:
    """Tokens that the engine would log, after it reported `start`."""
    room = room_of(start, spec, H100, gpus, LENGTH)
    assert room is not None
    return cache_of(with_rooms(spec, (room,), LENGTH), H100, gpus).reported_tokens(LENGTH)


@pytest.mark.parametrize("spec", [LLAMA, GEMMA])
def test_the_planned_cache_is_the_one_that_the_engine_stated(spec: catalog.ModelSpec) -> None:
    start = EngineStart(kv_tokens=70_000, request_tokens=LENGTH, max_len=LENGTH)
    assert measured(start, spec) == pytest.approx(70_000)
    assert cache_of(spec, H100, 1).reported_tokens(LENGTH) != pytest.approx(70_000, rel=0.1)


def test_a_size_in_bytes_or_in_blocks_of_the_metrics_counts_too() -> None:
    each = cache_of(LLAMA, H100, 1).block_bytes / 16
    assert measured(EngineStart(kv_bytes=int(each * 64_000))) == pytest.approx(64_000, abs=16)
    assert measured(EngineStart(blocks=4_000, block_tokens=32)) == 128_000
    # Blocks of several kinds of layers differ between versions, so their number alone says nothing.
    assert room_of(EngineStart(blocks=4_000, block_tokens=16), GEMMA, H100, 1, LENGTH) is None


def test_a_room_holds_only_for_its_settings_gpu_and_number_of_gpus() -> None:
    room = room_of(
        EngineStart(kv_tokens=90_000, request_tokens=LENGTH, max_len=LENGTH), LLAMA, H100, 1, LENGTH
    )
    assert room is not None
    eager = engine_memory(["--enforce-eager"]).apply_to(LLAMA)
    small = engine_memory(["--gpu-memory-utilization=0.5"]).apply_to(LLAMA)
    for other in (eager, small, catalog.quantized(LLAMA, "fp8"), GEMMA):
        assert with_rooms(other, (room,), LENGTH) == other
    known = with_rooms(LLAMA, (room,), LENGTH)
    assert cache_of(known, H100, 2) == cache_of(LLAMA, H100, 2)
    assert cache_of(known, catalog.gpu("A100"), 1) == cache_of(LLAMA, catalog.gpu("A100"), 1)


def test_a_refused_length_has_no_room_but_a_shorter_one_has() -> None:
    each = cache_of(LLAMA, H100, 1).block_bytes / 16
    start = EngineStart(kv_bytes=int(each * 20_000), refused="too_long", max_len=LENGTH)
    room = room_of(start, LLAMA, H100, 1, LENGTH)
    assert room is not None and room.refused_len == LENGTH
    assert kv_capacity_tokens(with_rooms(LLAMA, (room,), LENGTH), H100, 1) == 0.0
    shorter = with_rooms(LLAMA, (room,), 16_384)
    assert kv_capacity_tokens(shorter, H100, 1) == pytest.approx(20_000, abs=16)
    bare = replace(room, kv_bytes=0.0)
    assert with_rooms(LLAMA, (bare,), 16_384) == LLAMA
    assert kv_capacity_tokens(with_rooms(LLAMA, (bare,), LENGTH), H100, 1) == 0.0


@pytest.mark.parametrize(
    "start",
    [
        EngineStart(kv_tokens=10**9, request_tokens=LENGTH, max_len=LENGTH),
        EngineStart(kv_bytes=90 * 10**9),
        EngineStart(kv_tokens=16, request_tokens=LENGTH, max_len=LENGTH),
        EngineStart(blocks=10**8, block_tokens=16),
    ],
)
def test_a_room_that_the_gpu_cannot_have_or_that_forbids_the_start_is_refused(
    start: EngineStart,
) -> None:
    with pytest.raises(InvalidValue, match="KV cache"):
        room_of(start, LLAMA, H100, 1, LENGTH)


def test_bounds_of_a_room_are_checked() -> None:
    digest = memory_digest(LLAMA)
    for changes in ({"kv_tokens": -1.0}, {"kv_bytes": float("nan")}, {"kv_tokens": 5.0}):
        with pytest.raises(InvalidValue, match="measured room"):
            MeasuredRoom("H100-SXM", 1, digest, **changes)
