"""Sizes from a Hugging Face config.json equal the sizes that publishers state."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config, from_json

DENSE: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip


def test_there_are_facts_for_at_least_80_models_and_30_gpus_and_each_names_its_source() -> None:
    assert len(catalog.entries()) >= 80
    assert len(catalog.gpus()) >= 30
    assert all(entry.source for entry in catalog.entries().values())
    assert all(catalog.gpu_source(name) for name in catalog.gpus())


@pytest.mark.parametrize(
    "name", [name for name, entry in catalog.entries().items() if entry.published_params]
)
def test_computed_parameters_are_those_that_the_publisher_states(name: str) -> None:
    entry = catalog.entries()[name]
    assert entry.spec.params == pytest.approx(entry.published_params, rel=0.015)


def test_sizes_from_a_config_equal_those_in_the_catalogue() -> None:
    found = from_config("x", DENSE)
    known = catalog.models()["meta-llama/Llama-3.1-8B"]
    assert found.params == known.params
    assert found.kv_bytes_per_token == known.kv_bytes_per_token
    assert found.weight_bytes == known.weight_bytes
    assert (found.kv_heads, found.head_dim, found.max_position) == (8, 128, 131072)


def test_a_mixture_of_experts_with_latent_attention() -> None:
    """DeepSeek-V3 has 671B parameters, 37B of them active, and 576 latent cache numbers per layer
    and token."""
    config = {
        "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "vocab_size": 129280, "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128, "v_head_dim": 128, "n_routed_experts": 256,
        "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
        "first_k_dense_replace": 3, "tie_word_embeddings": False,
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3"},
    }  # fmt: skip
    found = from_config("x", config)
    known = catalog.models()["deepseek-ai/DeepSeek-V3"]
    assert found.params == pytest.approx(known.params, rel=1e-4)
    assert found.active_params == pytest.approx(known.active_params, rel=1e-3)
    assert found.kv_bytes_per_token == 2 * (512 + 64) * 61
    assert (found.experts, found.experts_per_token, found.weight_dtype) == (256, 8, "fp8")


def test_a_sliding_window_in_most_layers() -> None:
    """In Gemma 3 five of six layers attend to only 1,024 tokens."""
    found = from_config(
        "x",
        {**DENSE, "model_type": "gemma3_text", "num_hidden_layers": 48, "sliding_window": 1024},
    )
    assert found.sliding_window == 1024
    assert found.sliding_share == pytest.approx(5 / 6)


def test_a_disabled_sliding_window_is_ignored() -> None:
    off = {**DENSE, "sliding_window": 4096, "use_sliding_window": False}
    assert from_config("x", off).sliding_window == 0


def test_only_the_text_part_of_a_multimodal_model_counts() -> None:
    found = from_config("x", {"model_type": "some_vl", "text_config": DENSE})
    assert found.params == from_config("x", DENSE).params


@pytest.mark.parametrize(
    ("how", "dtype", "gigabytes"),
    [
        (None, "bf16", 16.1),
        ({"quant_method": "fp8"}, "fp8", 9.1),
        ({"quant_method": "awq", "bits": 4}, "int4", 5.8),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}},
            },
            "int4",
            5.6,
        ),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp4", 6.0),
    ],
)
def test_weight_memory_follows_the_storage_format(
    how: dict[str, Any] | None, dtype: str, gigabytes: float
) -> None:
    found = from_config("x", DENSE if how is None else {**DENSE, "quantization_config": how})
    assert found.weight_dtype == dtype
    assert found.weight_bytes / 1e9 == pytest.approx(gigabytes, rel=0.02)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": None}, "hidden_size"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"),
        ({"num_key_value_heads": 64}, "num_key_value_heads"),
        ({"model_type": "nemotron_h"}, "layers_block_type"),
        ({"model_type": "mamba2"}, "Mamba layers alone"),
        ({"layer_types": ["full_attention"] * 31 + ["hyena"]}, "hyena"),
        ({"layer_types": ["full_attention"] * 30}, "30 layers"),
        ({"mamba_n_heads": 128}, "layer_types"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder"),
        ({"linear_attn_config": {"x": 1}}, "linear_attn_config"),
    ],
)
def test_an_unsupported_key_is_refused_by_name(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidValue, match=said):
        from_config("x", {**DENSE, **change})


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '"x"'])
def test_a_file_that_is_no_config_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue, match="config"):
        from_json("x", text)
