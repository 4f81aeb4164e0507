"""Convert Mistral's configuration `params.json` to Hugging Face's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_SAME = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size", "max_seq_len": "max_position_embeddings",
    "max_position_embeddings": "max_position_embeddings", "model_max_length": "model_max_length",
    "sliding_window": "sliding_window", "tied_embeddings": "tie_word_embeddings",
    "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank",
    "qk_rope_head_dim": "qk_rope_head_dim", "qk_nope_head_dim": "qk_nope_head_dim",
    "v_head_dim": "v_head_dim", "vision_encoder": "vision_encoder",
}  # fmt: skip
_EXPERTS = {
    "num_experts": "n_routed_experts", "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size", "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace",
}  # fmt: skip


def is_params(config: Mapping[str, Any]) -> bool:
    """Whether `config` has the form of a `params.json`."""
    return "dim" in config and "n_layers" in config and "model_type" not in config


def as_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` with the keys of a `config.json`.

    Missing keys get Mistral's defaults: separate input and output embeddings, and no sliding
    window.
    """
    found: dict[str, Any] = {"tie_word_embeddings": False, "sliding_window": None}
    found |= {ours: config[theirs] for theirs, ours in _SAME.items() if theirs in config}
    moe = config.get("moe")
    if isinstance(moe, Mapping):
        found |= {ours: moe[theirs] for theirs, ours in _EXPERTS.items() if theirs in moe}
    stored = config.get("quantization")
    if isinstance(stored, Mapping) and stored:
        weights = stored.get("qformat_weight")
        how: dict[str, Any] = {"quant_method": weights}
        if weights == "fp8_e4m3":
            how = {"quant_method": "fp8", "fmt": "e4m3"}
        found["quantization_config"] = how
        if isinstance(stored.get("config_groups"), Mapping):
            found["quantization_config"] = {"quant_method": "compressed-tensors", **stored}
    return {**found, "model_type": "mistral"}
