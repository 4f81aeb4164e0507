"""Sizes from a Hugging Face config.json equal the sizes that publishers state."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config, from_json
from autoscaler.performance.catalog import gpu
from autoscaler.templates.engine_filter import VLLM

DENSE: dict[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "tie_word_embeddings": False, "max_position_embeddings": 131072,
}  # fmt: skip


def test_there_are_facts_for_at_least_80_models_and_30_gpus_and_each_names_its_source() -> None:
    assert len(catalog.models()) >= 80
    assert len(catalog.gpus()) >= 30
    assert all(catalog.entry(name).source for name in catalog.models())
    assert all(catalog.gpu_source(name) for name in catalog.gpus())


@pytest.mark.parametrize(
    "name", [name for name in catalog.models() if catalog.entry(name).published_params]
)
def test_computed_parameters_are_those_that_the_publisher_states(name: str) -> None:
    entry = catalog.entry(name)
    assert entry.spec.params == pytest.approx(entry.published_params, rel=0.015)


def test_sizes_from_a_config_equal_those_in_the_catalogue() -> None:
    found = from_config("x", DENSE)
    known = catalog.entry("meta-llama/Llama-3.1-8B").spec
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
    known = catalog.entry("deepseek-ai/DeepSeek-V3").spec
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


V4: dict[str, Any] = {
    "model_type": "deepseek_v4", "hidden_size": 4096, "num_hidden_layers": 4, "vocab_size": 129280,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128,
    "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512, "n_routed_experts": 256,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "tie_word_embeddings": False, "compress_ratios": [0, 4, 128, 4, 0],
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]},
}  # fmt: skip


def test_compressed_attention_keeps_entries_and_a_state_per_sequence() -> None:
    """An entry has 448 bytes, 64 positions of 2 bytes and 8 scale bytes; the list of ratios also
    names the draft layer."""
    spec = from_config("v4", V4)
    entry, indexer = 584, 132
    assert spec.kv_bytes_per_token == pytest.approx(2 * (entry + indexer) / 4 + entry / 128)
    window = 4 * 128 * entry
    by_4 = 8 * 2 * 2 * (512 + 128) * 4
    by_128 = 128 * 2 * 512 * 4
    assert spec.state_bytes == pytest.approx(window + 2 * by_4 + by_128)
    assert (spec.sliding_window, spec.sliding_share) == (128 + 512, 1.0)
    assert "o_groups 8" in spec.split_refusal(16)


@pytest.mark.parametrize(
    ("change", "dtype", "bits"),
    [
        ({}, "mxfp4", 4.25),
        ({"expert_dtype": "fp4"}, "mxfp4", 4.25),
        ({"expert_dtype": "fp8"}, "fp8", 8),
        (
            {"quantization_config": {**V4["quantization_config"], "moe_quant_algo": "NVFP4"}},
            "fp4",
            4.5,
        ),
    ],
)
def test_experts_of_v4_are_stored_as_it_says(
    change: dict[str, Any], dtype: str, bits: float
) -> None:
    spec = from_config("v4", {**V4, **change})
    assert (spec.weight_dtype, spec.expert_bytes) == (dtype, pytest.approx(bits / 8))


def test_v4_needs_kernels_of_hopper_or_newer() -> None:
    spec = from_config("v4", V4)
    serving = {
        name: VLLM.runs(spec, NodeSlice(gpu(name), 8))
        for name in ("H100-SXM", "H20", "B200-SXM", "RTX5090", "L40S", "L4", "A100-SXM-80GB")
    }
    assert [name for name, runs in serving.items() if not runs] == ["L40S", "L4", "A100-SXM-80GB"]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"compress_ratios": [4, 4]}, "compress_ratios"),
        ({"compress_ratios": [8] * 4}, "compress_ratios"),
        ({"expert_dtype": "int3"}, "expert_dtype"),
        ({"o_groups": 7}, "o_groups"),
        ({"model_type": "llama"}, "compress_ratios"),
    ],
)
def test_a_v4_that_is_not_understood_is_refused(change: dict[str, Any], key: str) -> None:
    with pytest.raises(InvalidValue, match=key):
        from_config("v4", {**V4, **change})


KIMI: dict[str, Any] = {
    "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 4, "vocab_size": 163840,
    "num_attention_heads": 32, "intermediate_size": 9216, "kv_lora_rank": 512, "q_lora_rank": None,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1, "tie_word_embeddings": False,
    "linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [4], "num_heads": 32,
                           "head_dim": 128, "short_conv_kernel_size": 4},
}  # fmt: skip


def test_kimi_linear_caches_in_its_full_layers_alone() -> None:
    """A delta layer keeps a matrix per head in 32 bits, and three inputs of its convolution."""
    spec = from_config("kimi", KIMI)
    assert spec.kv_bytes_per_token == (512 + 64) * 2
    assert spec.state_bytes == 3 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2)
    assert (spec.experts, spec.experts_per_token) == (256, 8)


@pytest.mark.parametrize(
    "layers", [{"kda_layers": [1, 2], "full_attn_layers": [4]}, {"kda_layers": [1, 2, 3, 4]},
               {"kda_layers": [0, 1, 2], "full_attn_layers": [3]}, {}],
)  # fmt: skip
def test_kimi_linear_names_each_layer_once(layers: dict[str, Any]) -> None:
    listed = {"kda_layers": [], "full_attn_layers": [4], "num_heads": 32, "head_dim": 128}
    with pytest.raises(InvalidValue, match="linear_attn_config"):
        from_config("kimi", {**KIMI, "linear_attn_config": {**listed, **layers}})
