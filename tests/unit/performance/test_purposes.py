"""Pooling models are planned as such; parts of other models are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.architecture import from_config

ENCODER = {
    "architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "hidden_size": 1024,
    "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "vocab_size": 250002, "max_position_embeddings": 8194, "torch_dtype": "float32",
}  # fmt: skip
MODERN = {
    **ENCODER, "architectures": ["ModernBertForSequenceClassification"],
    "model_type": "modernbert", "hidden_size": 768, "intermediate_size": 1152,
    "num_hidden_layers": 22, "num_attention_heads": 12, "vocab_size": 50368,
    "global_attn_every_n_layers": 3, "local_attention": 128,
}  # fmt: skip
DECODER = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
}  # fmt: skip
ERNIE = {
    "model_type": "ernie4_5_moe_vl", "hidden_size": 2560, "intermediate_size": 12288,
    "num_hidden_layers": 28, "num_attention_heads": 20, "num_key_value_heads": 4, "head_dim": 128,
    "vocab_size": 103424, "max_position_embeddings": 131072, "moe_num_experts": [64, 64],
    "moe_intermediate_size": [1536, 512], "moe_k": 6, "moe_num_shared_experts": 2,
    "moe_layer_start_index": [1, 1], "moe_layer_interval": 1, "tie_word_embeddings": True,
}  # fmt: skip


@pytest.mark.parametrize(("config", "millions"), [(ENCODER, 560), (MODERN, 149)])
def test_an_encoder_pools_and_has_no_cache(config: dict[str, Any], millions: float) -> None:
    found = from_config("x", config)
    assert found.pooling
    assert found.params / 1e6 == pytest.approx(millions, rel=0.02)
    assert found.kv_bytes_per_token == 1.0


@pytest.mark.parametrize(
    ("name", "pools"),
    [
        ("LlamaForCausalLM", False),
        ("LlamaForSequenceClassification", True),
        ("Qwen2ForRewardModel", True),
        ("Qwen2ForProcessRewardModel", True),
        ("JinaForRanking", False),
        ("LlamaModel", True),
        ("ViTForImageClassification", True),
        ("GPT2LMHeadModel", False),
        ("InternVLChatModel", False),
    ],
)
def test_the_class_decides_whether_a_decoder_pools(name: str, pools: bool) -> None:
    assert from_config("x", {**DECODER, "architectures": [name]}).pooling is pools


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "draft for speculative decoding"),
        ({"draft_vocab_size": 32000}, "draft for speculative decoding"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "draft for speculative decoding"),
        ({"architectures": ["MedusaModel"]}, "draft for speculative decoding"),
        ({"architectures": ["LLaDAModelLM"]}, "diffusion model"),
        ({"model_type": "dream"}, "diffusion model"),
        ({"architectures": ["DiffusionGemmaForConditionalGeneration"]}, "diffusion model"),
    ],
)
def test_drafts_and_diffusion_models_are_refused_by_name(more: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValue, match=why):
        from_config("x", {**DECODER, **more})


def test_all_groups_of_experts_count_and_only_those_of_text_are_active() -> None:
    """ERNIE-4.5-VL-28B-A3B has 64 experts for text and 64 smaller ones for images."""
    found = from_config("x", ERNIE)
    assert found.params / 1e9 == pytest.approx(28.6, rel=0.01)
    assert found.weight_bytes / 1e9 == pytest.approx(57.2, rel=0.01)
    assert found.active_params / 1e9 == pytest.approx(3.4, rel=0.05)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("moe_intermediate_size", [1536, 512, 256]),
        ("intermediate_size", [12288, 4096]),
        ("num_key_value_heads", [4, 8]),
        ("moe_k", [6, 4]),
    ],
)
def test_a_list_of_different_numbers_is_refused(key: str, value: list[int]) -> None:
    with pytest.raises(InvalidValue, match=key):
        from_config("x", {**ERNIE, key: value})


def test_a_list_of_equal_numbers_counts_as_the_number() -> None:
    assert from_config("x", {**DECODER, "intermediate_size": [14336] * 32}) == from_config(
        "x", DECODER
    )
