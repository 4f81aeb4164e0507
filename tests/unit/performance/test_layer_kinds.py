"""Hybrid models, sparse configurations and the Mistral format: each kind of layer is counted
separately.
"""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.slices import NodeSlice
from autoscaler.domain.validation import InvalidValue
from autoscaler.domain.workload import Phase
from autoscaler.performance import catalog
from autoscaler.performance.architecture import from_config
from autoscaler.performance.engine_arguments import engine_memory
from autoscaler.performance.memory import kv_capacity_tokens, usable_gb
from autoscaler.performance.packaged_profile import default_profile
from autoscaler.performance.step_times import step_times

NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h", "num_hidden_layers": 56, "hidden_size": 4480,
    "hybrid_override_pattern": "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
    "intermediate_size": 15680, "num_attention_heads": 40, "num_key_value_heads": 8,
    "head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 80, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "vocab_size": 131072, "tie_word_embeddings": False,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 40, "hidden_size": 4096,
    "intermediate_size": 768, "shared_intermediate_size": 1536, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 72, "num_experts_per_tok": 10,
    "layer_types": ["attention" if n % 10 == 5 else "mamba" for n in range(40)],
    "mamba_n_heads": 128, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1,
    "mamba_d_conv": 4, "mamba_expand": 2, "vocab_size": 100352, "tie_word_embeddings": True,
}  # fmt: skip
LFM2_MOE: dict[str, Any] = {
    "model_type": "lfm2_moe", "num_hidden_layers": 24, "hidden_size": 2048,
    "intermediate_size": 7168, "moe_intermediate_size": 1792, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
    "conv_L_cache": 3, "vocab_size": 65536, "tie_word_embeddings": True,
    "layer_types": ["full_attention" if n in (2, 6, 10, 14, 18, 21) else "conv" for n in range(24)],
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "model_type": "jamba", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "num_experts": 16, "num_experts_per_tok": 2, "expert_layer_period": 2,
    "expert_layer_offset": 1, "attn_layer_period": 8, "attn_layer_offset": 4,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
    "vocab_size": 65536, "tie_word_embeddings": False,
}  # fmt: skip
BAMBA: dict[str, Any] = {
    "model_type": "bamba", "num_hidden_layers": 32, "hidden_size": 4096,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "attn_layer_indices": [9, 18, 27], "mamba_n_heads": 128, "mamba_d_head": 64,
    "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_d_conv": 4, "vocab_size": 128256,
    "tie_word_embeddings": False,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax_m1", "num_hidden_layers": 80, "hidden_size": 6144, "head_dim": 128,
    "intermediate_size": 9216, "num_attention_heads": 64, "num_key_value_heads": 8,
    "num_local_experts": 32, "num_experts_per_tok": 2, "vocab_size": 200064,
    "attn_type_list": [int(n % 8 == 7) for n in range(80)], "tie_word_embeddings": False,
}  # fmt: skip
GEMMA_3N: dict[str, Any] = {
    "model_type": "gemma3n",
    "text_config": {
        "model_type": "gemma3n_text", "hidden_size": 2048, "num_hidden_layers": 35,
        "intermediate_size": [16384] * 35,
        "layer_types": ["full_attention" if n % 5 == 4 else "sliding_attention"
                        for n in range(35)],
    },
}  # fmt: skip
GDN: dict[str, Any] = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "hidden_size": 2048, "head_dim": 256,
    "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 5120,
    "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts": 512,
    "num_experts_per_tok": 10, "full_attention_interval": 4, "linear_num_key_heads": 16,
    "linear_num_value_heads": 32, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "vocab_size": 151936, "attn_output_gate": True,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAVA: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
    "vision_config": {
        "model_type": "clip_vision_model", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 24,
    },
    "tie_word_embeddings": False,
}  # fmt: skip
GEMMA_3: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
        "num_hidden_layers": 34, "sliding_window": 1024,
    },
}  # fmt: skip
OMNI: dict[str, Any] = {
    "model_type": "qwen2_5_omni",
    "thinker_config": {
        "model_type": "qwen2_5_omni_thinker",
        "text_config": {"model_type": "qwen2_5_omni_text", "tie_word_embeddings": False},
        "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420,
                          "hidden_act": "silu"},
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "params", "active", "kv_bytes"),
    [
        (NEMOTRON, 8.89, 0, 4 * 2 * 8 * 128 * 2),
        (GRANITE, 32.2, 8.8, 4 * 2 * 8 * 128 * 2),
        (LFM2_MOE, 8.34, 1.56, 6 * 2 * 8 * 64 * 2),
        (JAMBA, 51.6, 12.1, 4 * 2 * 8 * 128 * 2),
        (BAMBA, 9.78, 0, 3 * 2 * 8 * 128 * 2),
        (MINIMAX, 456, 48.4, 10 * 2 * 8 * 128 * 2),
        (GEMMA_3N, 6.87, 0, 20 * 2 * 2 * 256 * 2),
        (GDN, 79.6, 3.8, 12 * 2 * 2 * 256 * 2),
        (LLAVA, 6.74, 0, 32 * 2 * 32 * 128 * 2),
        (GEMMA_3, 3.88, 0, 34 * 2 * 4 * 256 * 2),
        (OMNI, 7.62, 0, 28 * 2 * 4 * 128 * 2),
    ],
)
def test_layers_count_by_their_kind(
    config: dict[str, Any], params: float, active: float, kv_bytes: float
) -> None:
    found = from_config("x", config)
    assert found.params / 1e9 == pytest.approx(params, rel=0.01)
    assert found.kv_bytes_per_token == kv_bytes
    if active:
        assert found.active_params / 1e9 == pytest.approx(active, rel=0.03)


@pytest.mark.parametrize(
    ("config", "megabytes"),
    [
        (NEMOTRON, 27 * (128 * 80 * 128 * 4 + (128 * 80 + 2 * 8 * 128) * 3 * 2) / 1e6),
        ({**NEMOTRON, "mamba_ssm_cache_dtype": "bfloat16"},
         27 * (128 * 80 * 128 * 2 + (128 * 80 + 2 * 8 * 128) * 3 * 2) / 1e6),
        (GDN, 36 * (32 * 128 * 128 * 2 + (2 * 2048 + 4096) * 3 * 2) / 1e6),
        (MINIMAX, 70 * 64 * 128 * 128 * 2 / 1e6),
        (LFM2_MOE, 18 * 2048 * 2 * 2 / 1e6),
        (GEMMA_3, 0.0),
    ],
)  # fmt: skip
def test_each_sequence_has_a_state_in_layers_without_a_growing_cache(
    config: dict[str, Any], megabytes: float
) -> None:
    assert from_config("x", config).state_bytes / 1e6 == pytest.approx(megabytes)


def test_sequence_states_limit_the_requests_of_an_instance() -> None:
    """Each sequence of a 9B model has a state of 144 MB."""
    small = from_config("x", {**NEMOTRON, "max_position_embeddings": 131072})
    node = NodeSlice(catalog.gpu("L40S"), 1)
    times = step_times(small, node, Phase.AGGREGATED, default_profile())
    free = usable_gb(small, node.gpu, 1) * 1e9 - small.weight_bytes
    # 27 recurrent and 4 full layers make 7 and 1 groups of 4; a block is as large as a state.
    # By default vLLM caches prefixes and keeps two states of a sequence.
    blocks = free / (4 * small.state_bytes / 27)
    assert times.max_batch == pytest.approx(blocks / (7 * 2 + 1), rel=0.05)
    without = engine_memory(("--no-enable-prefix-caching",)).apply_to(small)
    times_without = step_times(without, node, Phase.AGGREGATED, default_profile())
    assert times_without.max_batch == pytest.approx(blocks / (7 + 1), rel=0.05)
    assert times.kv_tokens_at(1000.0) < 0.3 * kv_capacity_tokens(small, node.gpu, 1)


def test_encoder_weights_count_in_their_own_dtype() -> None:
    llava, omni = from_config("x", LLAVA), from_config("x", OMNI)
    assert llava.tower_bytes == 2 * 24 * (4 * 1024**2 + 2 * 1024 * 4096)
    assert omni.tower_bytes == 2 * 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    how = {"quantization_config": {"quant_method": "fp8"}}
    small = from_config("x", {**LLAVA, **how})
    assert small.tower_bytes == llava.tower_bytes
    assert small.weight_bytes < 0.56 * llava.weight_bytes


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3.5-397B-A17B", "Qwen/Qwen3-VL-8B-Instruct", "moonshotai/Kimi-K2.5",
        "google/gemma-3-27b-it", "meta-llama/Llama-4-Scout-17B-16E-Instruct",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
    ],
)  # fmt: skip
def test_packaged_multimodal_models_have_their_encoders(name: str) -> None:
    """Each of these encoders has 0.4 to 0.7 B weights."""
    assert 0.3 < catalog.model(name).tower_bytes / 2e9 < 0.9


def test_an_unknown_layer_is_shown_by_its_beginning() -> None:
    with pytest.raises(InvalidValue, match=r"layer_types: .*xxx") as caught:
        from_config("x", {**LFM2_MOE, "layer_types": ["x" * 5000] * 24})
    assert len(str(caught.value)) < 700


def test_packaged_hybrid_models_have_states() -> None:
    """45 of 60 layers have a state of 64 heads of 128 x 128 numbers, and of the convolution."""
    spec = catalog.model("Qwen/Qwen3.5-397B-A17B-FP8")
    assert spec.state_bytes == 45 * (64 * 128 * 128 * 4 + (2 * 16 + 64) * 128 * 3 * 2)


def test_a_file_without_required_sizes_is_refused() -> None:
    with pytest.raises(InvalidValue, match="num_hidden_layers"):
        from_config("x", {"model_type": "llama"})


def test_a_multimodal_file_that_states_nothing_of_its_text_has_the_class_default() -> None:
    found = from_config("x", {"model_type": "llava", "vision_config": LLAVA["vision_config"]})
    assert found.layers == 32
    assert found.vocab == 32000


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"layer_types": ["retention"] * 40}, "retention"),
        ({"layer_types": ["linear_attention"] * 40, "mamba_n_heads": None}, "linear_attention"),
        ({"layer_types": ["mamba"] * 40}, "no attention"),
        ({"layer_types": None}, "layer_types"),
        ({"mamba_d_state": None}, "ssm_state_size"),
    ],
)
def test_layers_of_an_unknown_kind_are_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        from_config("x", {**GRANITE, **change})


def test_a_pattern_that_lacks_layers_is_refused() -> None:
    with pytest.raises(InvalidValue, match="hybrid_override_pattern: '4 layers'"):
        from_config("x", {**NEMOTRON, "hybrid_override_pattern": "M-M*"})


def params_json(**more: Any) -> ModelSpec:
    config = {
        "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 32768, "n_heads": 32,
        "n_kv_heads": 8, "vocab_size": 131072, "max_seq_len": 131072,
    }  # fmt: skip
    return from_config("x", {**config, **more})


def test_the_mistral_format_gives_the_same_sizes() -> None:
    found = params_json()
    assert found.params == pytest.approx(23_572_403_200, rel=1e-6)
    assert found.max_position == 131072
    assert found.sliding_window == 0
    small = params_json(quantization={"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"})
    assert small.weight_dtype == "fp8"
    with pytest.raises(InvalidValue, match="quant_method"):
        params_json(quantization={"qformat_weight": "int2"})
    routed = params_json(moe={"num_experts": 8, "num_experts_per_tok": 2})
    assert (routed.experts, routed.experts_per_token) == (8, 2)


def blocks(*attention: dict[str, Any]) -> dict[str, Any]:
    each = [{"attention": one, "ffn": {"ffn_mult": 2.625}} for one in attention]
    return {
        "model_type": "nemotron-nas", "num_hidden_layers": len(each), "hidden_size": 8192,
        "num_attention_heads": 64, "num_key_value_heads": None, "intermediate_size": None,
        "vocab_size": 128256, "tie_word_embeddings": False, "block_configs": each,
    }  # fmt: skip


def test_layers_of_different_shapes_count_one_by_one() -> None:
    found = from_config("x", blocks({"n_heads_in_group": 8}, {"no_op": True}))
    assert found.kv_bytes_per_token == 2 * 8 * 128 * 2
    assert found.kv_heads == 8
    attention = 2 * 8192 * 8192 + 2 * 8192 * 1024
    mlp = 3 * 8192 * 14336
    beside = 2 * 128256 * 8192
    assert found.params == pytest.approx(attention + 2 * mlp + beside, rel=1e-4)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"block_configs": []}, "0 layers"),
        ({"block_configs": [1, 2]}, "mapping"),
        (blocks({"replace_with_linear": True}, {"no_op": True}), "replace_with_linear"),
        (blocks({"n_heads_in_group": 0}, {"no_op": True}), "n_heads_in_group"),
    ],
)
def test_blocks_that_cannot_be_read_are_refused(change: dict[str, Any], named: str) -> None:
    config = {**blocks({"n_heads_in_group": 8}, {"no_op": True}), **change}
    with pytest.raises(InvalidValue, match=named):
        from_config("x", config)


def test_the_width_of_lfm2_is_read_from_its_own_key() -> None:
    small = {**LFM2_MOE, "model_type": "lfm2", "num_experts": None, "intermediate_size": None}
    wide = from_config("x", {**small, "block_ff_dim": 12288})
    narrow = from_config("x", {**small, "block_ff_dim": 6656})
    assert (wide.intermediate, narrow.intermediate) == (8192, 4608)
