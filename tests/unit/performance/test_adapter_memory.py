"""The memory of LoRA adapters, compared with vLLM's allocation layer by layer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.adapter_memory import with_adapters
from autoscaler.performance.memory import adapter_bytes, kv_capacity_tokens

LLAMA = catalog.model("meta-llama/Llama-3.1-8B")
H100 = catalog.gpu("H100-SXM")


def test_a_dense_model_reserves_two_matrices_per_layer_and_slot() -> None:
    """For Llama-3.1-8B, each linear layer has (input + output) x rank numbers of 2 bytes."""
    linear = {"q": (4096, 4096), "k": (4096, 1024), "v": (4096, 1024), "o": (4096, 4096),
              "gate": (4096, 14336), "up": (4096, 14336), "down": (14336, 4096)}  # fmt: skip
    layer = sum(wide + tall for wide, tall in linear.values())
    outer = 2 * (128_256 + 4096)
    found = with_adapters(LLAMA, slots=4, rank=32)
    assert adapter_bytes(found, 1) == pytest.approx(2 * 4 * 32 * (32 * layer + outer))


def test_each_gpu_holds_a_copy_of_one_matrix_of_each_pair() -> None:
    found = with_adapters(LLAMA, slots=1, rank=16)
    copied = 2 * 16 * (32 * 7 * 4096 + 2 * (128_256 + 4096))
    assert adapter_bytes(found, 4) - adapter_bytes(found, 1) == pytest.approx(3 * copied)


def test_experts_count_one_by_one() -> None:
    """Qwen3-30B-A3B has 128 experts in each of 48 layers."""
    found = with_adapters(catalog.model("Qwen/Qwen3-30B-A3B"), slots=1, rank=16)
    experts = 2 * 16 * 48 * 128 * 3 * (2048 + 768)
    assert experts < adapter_bytes(found, 1) < 1.1 * experts


def test_adapters_take_room_from_the_kv_cache() -> None:
    with_them = with_adapters(LLAMA, slots=8, rank=64)
    lost = kv_capacity_tokens(LLAMA, H100, 1) - kv_capacity_tokens(with_them, H100, 1)
    assert lost * LLAMA.kv_bytes_per_token == pytest.approx(adapter_bytes(with_them, 1), rel=1e-3)


def test_without_adapters_nothing_changes() -> None:
    assert with_adapters(LLAMA, 0, 16) is LLAMA


def test_models_that_cannot_have_adapters_are_refused() -> None:
    with pytest.raises(InvalidValue, match="258048"):
        with_adapters(replace(LLAMA, vocab=262_144), 1, 16)
    with pytest.raises(InvalidValue, match="attention layers only"):
        with_adapters(replace(LLAMA, state_bytes=1e6), 1, 16)
