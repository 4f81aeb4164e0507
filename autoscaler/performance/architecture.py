"""From a Hugging Face configuration to a `ModelSpec`.

Owns what the keys of a `config.json` mean for sizes: dense models, grouped-query attention,
mixtures of experts, latent attention, sliding windows, linear attention beside full layers. Knows
no files and no names of models. Parameter counts are sums over matrices; what has a few thousand
entries (norms, biases) is counted where it is easy and left out where it is not (below 0.1%).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue, whole

Config = Mapping[str, Any]

# Model types with two MLP matrices (up, down), not three.
_PLAIN_MLP = {
    "gpt2", "opt", "bloom", "falcon", "mpt", "phi", "gpt_neox", "gpt_bigcode", "starcoder2",
    "nemotron", "gptj",
}  # fmt: skip
# Model types whose configuration class shares input and output embeddings unless told otherwise.
_TIED = {
    "gpt2", "opt", "bloom", "falcon", "mpt", "gemma", "gemma2", "gemma3", "gemma3_text", "cohere",
    "cohere2", "starcoder2", "gpt_bigcode", "gemma4", "gemma4_text",
}  # fmt: skip
_STATE_SPACE = (
    "compress_ratios", "mamba_num_heads", "mamba_d_state", "ssm_cfg", "linear_attn_config", "rwkv",
)  # fmt: skip
_NOT_MODELLED = {
    "deepseek_v4": "compressed attention", "kimi_linear": "Kimi linear attention",
    "nemotron_h": "Mamba layers", "mamba": "Mamba layers", "mamba2": "Mamba layers",
    "nemotron-nas": "layers of different shapes", "jamba": "Mamba layers", "rwkv": "RWKV layers",
}  # fmt: skip
_FP4_PER_WEIGHT = 4.5 / 8
_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp4": _FP4_PER_WEIGHT, "mxfp4": 4.25 / 8, "int4": 4.25 / 8}
_BF16 = 2.0


def from_json(name: str, text: str, field: str = "config") -> ModelSpec:
    """The architecture in the text of a `config.json`, see `from_config`."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise InvalidValue(field, name, f"a Hugging Face config.json ({error})") from None
    return from_config(name, config, field)


def from_config(name: str, config: Config, field: str = "config") -> ModelSpec:
    """The architecture that a Hugging Face `config.json` describes.

    Of a multimodal model the text part. InvalidValue names the key that is missing or the kind of
    layer that is not modelled.
    """
    if not isinstance(config, Mapping):
        raise InvalidValue(field, type(config).__name__, "a mapping, as in a config.json")
    nested = config.get("text_config") or config.get("language_config") or config.get("llm_config")
    inner = nested if isinstance(nested, Mapping) else {}
    text = {**config, **inner}
    kind = str(text.get("model_type", "")).lower()
    _refuse(kind, text, field)
    layers = _count(text, field, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    hidden = _count(text, field, "hidden_size", "n_embd", "d_model")
    heads = _count(text, field, "num_attention_heads", "n_head", "n_heads")
    vocab = _count(text, field, "vocab_size", "padded_vocab_size")
    routed = _experts(text)
    dense_mlp = _intermediate(text, hidden, field)
    matrices = 2 if kind in _PLAIN_MLP else 3
    attention, kv_heads, head_dim, kv_width = _attention(text, kind, hidden, heads, field)
    full, sliding, linear = _layer_kinds(text, layers)
    linear_each = _linear_attention(text, hidden) if linear else 0.0
    moe_layers = _moe_layers(text, layers) if routed else 0
    expert = _expert_intermediate(text, dense_mlp) if routed else 0
    shared = _shared_width(text, expert) if routed else 0
    beside = _dense_beside(text, kind, dense_mlp)
    each_expert = 3.0 * hidden * expert
    embeddings = float(vocab * hidden)
    head = 0.0 if _tied(text, kind) else embeddings
    body = (layers - linear) * attention + linear * linear_each
    body += (layers - moe_layers) * matrices * hidden * beside
    body += moe_layers * (3.0 * hidden * shared + hidden * (routed[0] if routed else 0))
    body += 2.0 * hidden * layers + hidden  # norms
    experts_all = moe_layers * (routed[0] if routed else 0) * each_expert
    experts_active = moe_layers * (routed[1] if routed else 0) * each_expert
    params = body + embeddings + head + experts_all
    # As published counts have it: a token passes embeddings and head, whether shared or not.
    active = params - experts_all + experts_active
    dtype, share = _weights(config, text, bool(routed))
    outside = embeddings + head
    if share == "experts":
        outside = params - experts_all
    weight_bytes = (params - outside) * _BYTES[dtype] + outside * _BF16
    return ModelSpec(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=max(1, int(dense_mlp)),
        vocab=vocab,
        params=params,
        active_params=active,
        weight_bytes=weight_bytes,
        kv_bytes_per_token=_BF16 * kv_width * (full + sliding),
        weight_dtype=dtype,
        experts=routed[0] if routed else 0,
        experts_per_token=routed[1] if routed else 0,
        moe_intermediate=expert,
        sliding_window=_window(text) if sliding else 0,
        sliding_share=sliding / layers,
        max_position=_max_position(text),
    )


def _refuse(kind: str, text: Config, field: str) -> None:
    allowed = "transformers with attention in every layer, or with linear attention of Qwen's kind"
    if kind in _NOT_MODELLED:
        raise InvalidValue(f"{field}: model_type", f"{kind} ({_NOT_MODELLED[kind]})", allowed)
    for key in _STATE_SPACE:
        if text.get(key):
            raise InvalidValue(f"{field}: {key}", text[key], allowed)


def _get(text: Config, *names: str) -> Any:
    return next((text[name] for name in names if text.get(name) is not None), None)


def _count(text: Config, field: str, *names: str) -> int:
    value = _get(text, *names)
    if value is None:
        raise InvalidValue(f"{field}: {names[0]}", "missing", "a whole number above 0")
    return whole(f"{field}: {names[0]}", value, 1, 10**8)


def _intermediate(text: Config, hidden: int, field: str) -> int:
    value = _get(text, "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0] if value else None
    if value is None:
        value = int(text.get("expansion_ratio", 4)) * hidden
    return whole(f"{field}: intermediate_size", value, 1, 10**8)


def _attention(
    text: Config, kind: str, hidden: int, heads: int, field: str
) -> tuple[float, int, int, int]:
    """Parameters of one layer's attention, KV heads, head size, cached numbers per token."""
    rank = text.get("kv_lora_rank")
    if rank:
        rope, nope = int(text["qk_rope_head_dim"]), int(text["qk_nope_head_dim"])
        value_dim = int(text.get("v_head_dim") or nope)
        query = heads * (nope + rope)
        low = text.get("q_lora_rank")
        q = float(hidden * low + low * query) if low else float(hidden * query)
        kv = float(hidden * (rank + rope) + rank * heads * (nope + value_dim))
        out = float(heads * value_dim * hidden)
        # The latent cache is one head that every GPU holds in full.
        return q + kv + out, 1, (nope + rope + value_dim) // 2, rank + rope
    kv_heads = _get(
        text, "num_key_value_heads", "num_kv_heads", "multi_query_group_num", "n_head_kv"
    )
    if kind == "falcon" and not text.get("new_decoder_architecture"):
        kv_heads = 1 if text.get("multi_query", True) else heads
    if isinstance(text.get("attn_config"), Mapping):
        kv_heads = text["attn_config"].get("kv_n_heads", kv_heads)
    groups = whole(f"{field}: num_key_value_heads", kv_heads or heads, 1, heads)
    size = _get(text, "head_dim", "kv_channels") or hidden // heads
    gate = 2 if text.get("attn_output_gate") else 1
    q = gate * hidden * heads * size
    total = float(q + 2 * hidden * groups * size + heads * size * hidden)
    return total, groups, int(size), 2 * groups * int(size)


def _experts(text: Config) -> tuple[int, int] | None:
    ffn = text.get("ffn_config") if isinstance(text.get("ffn_config"), Mapping) else {}
    count = _get(text, "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts")
    count = count or (ffn or {}).get("moe_num_experts")
    if isinstance(count, Sequence) and not isinstance(count, str):
        count = count[0]
    chosen = _get(
        text, "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk",
        "experts_per_token", "top_k_experts",
    ) or (ffn or {}).get("moe_top_k")  # fmt: skip
    if isinstance(chosen, Sequence) and not isinstance(chosen, str):
        chosen = chosen[0]
    if not count or int(count) <= 1:
        return None
    return int(count), int(chosen or 1)


def _expert_intermediate(text: Config, dense: int) -> int:
    ffn = text.get("ffn_config") if isinstance(text.get("ffn_config"), Mapping) else {}
    value = _get(
        text, "moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"
    )
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = value[0]
    return int(value or (ffn or {}).get("ffn_hidden_size") or dense)


def _shared_width(text: Config, expert: int) -> int:
    """Width of the MLP that every token passes beside its experts, in a layer with experts."""
    width = _get(text, "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size")
    if width:
        return int(width)
    many = _get(text, "n_shared_experts", "num_shared_experts", "num_shared_expert",
                "moe_num_shared_experts")  # fmt: skip
    if isinstance(many, Sequence) and not isinstance(many, str):
        many = many[0]
    if text.get("model_type") in ("llama4", "llama4_text"):
        return int(text["intermediate_size"])
    return int(many or 0) * expert


def _dense_beside(text: Config, kind: str, dense: int) -> int:
    """Width of the MLP in layers without experts."""
    if kind in ("llama4", "llama4_text"):
        return int(text.get("intermediate_size_mlp", dense))
    return int(text.get("dense_intermediate_size") or dense)


def _moe_layers(text: Config, layers: int) -> int:
    """How many layers route to experts."""
    pattern = text.get("moe_layer_freq")
    if isinstance(pattern, Sequence) and not isinstance(pattern, str):
        return sum(1 for one in pattern[:layers] if one)
    kinds = text.get("mlp_layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        return sum(1 for one in kinds[:layers] if one == "sparse")
    listed = text.get("moe_layers")
    if isinstance(listed, Sequence) and not isinstance(listed, str) and listed:
        return len(listed)
    if text.get("moe_layers_enum"):
        return len(str(text["moe_layers_enum"]).split(","))
    first = int(_get(text, "first_k_dense_replace", "moe_layer_start_index") or 0)
    step = int(_get(text, "decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval")
               or (pattern if isinstance(pattern, int) else 1) or 1)  # fmt: skip
    without = {int(n) for n in text.get("mlp_only_layers") or ()}
    return sum(
        1 for index in range(first, layers) if index not in without and (index + 1) % step == 0
    )


def _layer_kinds(text: Config, layers: int) -> tuple[int, int, int]:
    """Layers with full, sliding-window and linear attention."""
    kinds = text.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        own = list(kinds[:layers])
        linear = own.count("linear_attention")
        sliding = own.count("sliding_attention") + own.count("chunked_attention")
        sliding = sliding if _window(text) else 0
        return layers - linear - sliding, sliding, linear
    every = text.get("full_attention_interval")
    if every and text.get("linear_num_value_heads"):
        full = layers // int(every)
        return full, 0, layers - full
    pattern = text.get("hybrid_layer_pattern")
    if isinstance(pattern, Sequence) and not isinstance(pattern, str) and _window(text):
        sliding = sum(1 for one in pattern[:layers] if one)
        return layers - sliding, sliding, 0
    if not _window(text) or text.get("use_sliding_window") is False:
        return layers, 0, 0
    kind = str(text.get("model_type", ""))
    every = text.get("sliding_window_pattern")
    if every is None:
        every = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2,
                 "llama4": 4, "llama4_text": 4}.get(kind)  # fmt: skip
    if every:
        full = layers // int(every)
        return full, layers - full, 0
    return 0, layers, 0


def _window(text: Config) -> int:
    chunk = text.get("attention_chunk_size") if "llama4" in str(text.get("model_type")) else None
    return int(_get(text, "sliding_window", "sliding_window_size") or chunk or 0)


def _linear_attention(text: Config, hidden: int) -> float:
    """Parameters of one gated delta-net layer (Qwen3-Next, Qwen3.5)."""
    keys = int(text["linear_num_key_heads"]) * int(text["linear_key_head_dim"])
    heads = int(text["linear_num_value_heads"])
    values = heads * int(text["linear_value_head_dim"])
    return float(hidden * (2 * keys + 2 * values) + 2 * hidden * heads + values * hidden)


def _tied(text: Config, kind: str) -> bool:
    tied = text.get("tie_word_embeddings", text.get("tie_embeddings"))
    return kind in _TIED if tied is None else bool(tied)


def _max_position(text: Config) -> int:
    found = _get(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
                 "model_max_length", "max_sequence_length")  # fmt: skip
    return whole("max_position_embeddings", int(found or 4096), 1, 10**8)


def _weights(config: Config, text: Config, routed: bool) -> tuple[str, str]:
    """How weights are stored, and of what: "all" matrices or the "experts" alone."""
    how = config.get("quantization_config") or text.get("quantization_config") or {}
    method = str(how.get("quant_method", "")).lower()
    said = f"{method} {how.get('quant_algo', '')} {how.get('format', '')} {how.get('fmt', '')}"
    said = said.lower()
    bits = _get(how, "bits", "w_bit")
    groups = how.get("config_groups")
    if bits is None and isinstance(groups, Mapping) and groups:
        weights = next(iter(groups.values())).get("weights") or {}
        bits = weights.get("num_bits")
        said += f" {weights.get('type', '')}"
    if "mxfp4" in said:
        return "mxfp4", "experts" if routed else "all"
    if "fp4" in said:
        return "fp4", "all"
    if "fp8" in said or "e4m3" in said or (bits == 8 and "float" in said):
        return "fp8", "all"
    if bits == 4:
        ignored = " ".join(map(str, how.get("ignore") or ()))
        return "int4", "experts" if routed and "attn" in ignored else "all"
    return "bf16", "all"
