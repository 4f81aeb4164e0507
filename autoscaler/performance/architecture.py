"""Read a Hugging Face configuration into a `ModelSpec`.

The steps are: find the text model among the keys, read the kinds of its layers, build the matrices
of the layers, read the quantisation, and sum parameters and bytes. Parameter counts are sums over
matrices and norms; biases are not counted (below 0.1%).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autoscaler.domain.model_spec import ModelSpec
from autoscaler.domain.validation import InvalidValue, whole
from autoscaler.performance.checkpoint import (
    attention,
    compressed,
    feedforward,
    layer_blocks,
    layers,
    purposes,
    recurrent,
    towers,
)
from autoscaler.performance.checkpoint.blueprint import BF16_BYTES, Blueprint, stored_sizes
from autoscaler.performance.checkpoint.class_defaults import (
    defaults_of,
    optional_defaults,
    text_type_of,
)
from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import (
    NO_FEED_FORWARD,
    NO_MIXER,
    FeedForward,
    Matrix,
    Mixer,
)
from autoscaler.performance.checkpoint.mistral_params import as_config, is_params
from autoscaler.performance.checkpoint.per_layer_inputs import per_layer_inputs
from autoscaler.performance.quantization.read import scheme_of

Config = Mapping[str, Any]

_NO_CACHE = 1.0
"""Bytes per token of an encoder, which has no KV cache: the least that a `ModelSpec` allows."""

_TEXT = ("text_config", "language_config", "llm_config")
_AROUND_TEXT = ("thinker_config",)
_OF_TEXT = ("quantization_config", "tie_word_embeddings", "torch_dtype")
_NOT_MODELLED = {
    "deepseek_ref": "compressed attention", "mamba": "Mamba layers alone",
    "mamba2": "Mamba layers alone", "falcon_mamba": "Mamba layers alone",
    "rwkv": "RWKV layers",
    "recurrent_gemma": "RG-LRU layers", "zamba": "shared attention", "zamba2": "shared attention",
    "plamo2": "Mamba layers of its own", "openelm": "layers of different shapes",
}  # fmt: skip
_NOT_READ = ("compress_ratios", "compress_rates", "ssm_cfg", "linear_attn_config", "rwkv",
             "block_types", "hybrid_layer_ids", "attn_res_block_size")  # fmt: skip
_READ_BY = {"compress_ratios": compressed.KIND, "linear_attn_config": "kimi_linear"}
_ALLOWED = "transformers of full, sliding, linear, Mamba and convolution layers"


def from_json(name: str, text: str, field: str = "config") -> ModelSpec:
    """The architecture that `text`, a `config.json`, describes, see `from_config`."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        allowed = f"a Hugging Face config.json ({error})"
        raise InvalidValue(field, name, allowed) from None
    return from_config(name, config, field)


def from_config(name: str, config: Config, field: str = "config") -> ModelSpec:
    """The architecture that a Hugging Face `config.json`, or Mistral's `params.json`, describes.

    For a multimodal model, the result is its language model; the weights of its encoders count only
    in its bytes. Raises InvalidValue, which names the key, if a key is missing or has an unknown
    value.
    """
    if not isinstance(config, Mapping):
        raise InvalidValue(field, type(config).__name__, "a mapping, as in a config.json")
    if is_params(config):
        config = as_config(config)
    keys, kind, around = _text_model(config, field)
    classes = purposes.names_of(around)
    purposes.refuse_parts(kind, classes, keys)
    _refuse(kind, keys)
    encodes = kind in purposes.ENCODERS
    count = layers.count_of(keys)
    hidden = keys.number_of("hidden_size", "n_embd", "d_model", high=10**6)
    vocab = keys.number_of("vocab_size", "padded_vocab_size", high=10**8)
    heads = attention.heads_of(keys, kind, hidden)
    width = feedforward.intermediate_of(keys, kind, hidden)
    if kind == layer_blocks.KIND:
        heads = replace(heads, kv_heads=layer_blocks.kv_heads_of(keys, heads.heads))
        listed, experts = layer_blocks.blocks_of(keys, hidden, heads, count), None
    else:
        listed, experts = _layers(keys, kind, count, hidden, heads, width)
    in_layers, outside = per_layer_inputs(keys, count, hidden)
    if kind in purposes.ENCODERS - purposes.GATED_ENCODERS:
        learnt = Matrix(("position_embeddings",), _max_position(keys), hidden, "embedding")
        outside = (*outside, learnt)
    made = tuple((_with(mixer, in_layers), forward) for mixer, forward in listed)
    tied = encodes or _tied(keys, kind)
    embeddings = [Matrix(("embed_tokens",), vocab, hidden, "embedding"), *outside]
    if not tied:
        embeddings.append(Matrix(("lm_head",), vocab, hidden, "head"))
    blueprint = Blueprint(
        made, tuple(embeddings), 2.0 * hidden * count + hidden,
        keys.number("num_kv_shared_layers", high=count),
    )  # fmt: skip
    scheme = scheme_of(_quantisation(keys, around))
    if kind == compressed.KIND:
        scheme = compressed.scheme(keys, scheme)
    sums = stored_sizes(blueprint, scheme)
    kv_bytes = _NO_CACHE if encodes else blueprint.cached(scheme.kv_bits / 8.0)
    if kv_bytes <= 0.0:
        raise keys.error("layer_types", "no attention", "at least one layer with attention")
    chosen = sums.experts * (experts.chosen / experts.count if experts else 0.0)
    sliding = sum(1 for mixer, _ in made if mixer.kind == "sliding")
    window = layers.window_of(keys, kind) if sliding else 0
    tower_bytes = towers.tower_params(around) * BF16_BYTES
    params = sums.dense + sums.experts + sums.others + sums.outside
    # Tables of per-layer inputs are looked up, so they need no matrix products.
    looked_up = sum(one.weights for one in outside if one.part == "embedding")
    quantised = sums.dtype != "bf16" or bool(scheme.rules)
    return ModelSpec(
        name=name,
        layers=count,
        hidden=hidden,
        heads=heads.heads,
        kv_heads=heads.kv_heads,
        head_dim=heads.size,
        intermediate=width,
        vocab=vocab,
        params=params,
        # Published counts of active parameters include both embeddings and head, even if they share
        # a matrix.
        active_params=sums.dense + chosen + sums.outside - looked_up,
        weight_bytes=sums.dense_bytes
        + sums.expert_bytes
        + sums.others_bytes
        + sums.outside_bytes
        + tower_bytes,
        kv_bytes_per_token=kv_bytes,
        weight_dtype=sums.dtype,
        experts=experts.count if experts else 0,
        experts_per_token=experts.chosen if experts else 0,
        moe_intermediate=experts.width if experts else 0,
        sliding_window=window,
        sliding_share=sliding / count,
        max_position=_max_position(keys),
        dense_bytes=sums.dense_bytes / sums.dense if quantised else 0.0,
        expert_bytes=sums.expert_bytes / sums.experts if quantised and sums.experts else 0.0,
        expert_params=_expert_params(sums.experts, experts, count, hidden),
        state_bytes=sum(mixer.state_bytes for mixer, _ in made),
        tower_bytes=tower_bytes,
        splits=sums.splits,
        undivided=scheme.whole,
        integer_activations=sums.integer_activations,
        kv_bits=scheme.kv_bits,
        compressed_attention=kind == compressed.KIND,
        cache_layers=() if encodes else blueprint.cache_layers(scheme.kv_bits / 8.0, window),
        pooling=purposes.pools(kind, classes),
    )


def _layers(
    keys: Keys, kind: str, count: int, hidden: int, heads: attention.Heads, width: int
) -> tuple[list[tuple[Mixer, FeedForward]], feedforward.Experts | None]:
    """The layers by their kinds, and the routed experts (None without any)."""
    experts = feedforward.experts_of(keys, kind, hidden, width)
    kinds = layers.kinds_of(keys, kind, count, experts is not None)
    routes = any(forward == layers.ROUTED for _, forward in kinds)
    if experts is None and routes:
        raise keys.error("n_routed_experts", None, "how many experts its layers route to")
    mixers = {one: _mixer(keys, kind, hidden, heads, one) for one in {m for m, _ in kinds}}
    forwards: dict[str, FeedForward] = {layers.NO_MLP: NO_FEED_FORWARD}
    forwards[layers.DENSE] = feedforward.dense(keys, kind, hidden, width)
    if experts is not None and routes:
        forwards[layers.ROUTED] = feedforward.routed(keys, kind, hidden, experts)
    return [(mixers[m], forwards[f]) for m, f in kinds], experts if routes else None


def _text_model(config: Config, field: str) -> tuple[Keys, str, Keys]:
    """The keys of the language model, its model type, and the keys of the whole configuration."""
    outer = str(config.get("model_type") or "").lower()
    for name in _AROUND_TEXT:
        inner = config.get(name)
        if isinstance(inner, Mapping) and not any(key in config for key in _TEXT):
            outer_keys = {key: value for key, value in config.items() if key != name}
            return _text_model({**outer_keys, **inner}, field)
    outside = Keys(config, field, {})
    nested = next((config[key] for key in _TEXT if isinstance(config.get(key), Mapping)), None)
    kind = text_type_of(outer)
    if nested is None:
        if kind and not any(key in config for key in ("hidden_size", "n_embd", "d_model")):
            bare = {k: v for k, v in config.items() if k in _OF_TEXT}
            return Keys(bare, field, defaults_of(kind)), kind, outside
        return Keys(config, field, optional_defaults(outer)), outer, outside
    kind = str(nested.get("model_type") or kind).lower()
    around = {key: value for key, value in config.items() if key not in _TEXT}
    # Widths at the top level do not describe the text model.
    around = around if "hidden_size" in nested else {**around, "hidden_size": None}
    merged = {**around, **nested}
    if merged.get("hidden_size") is None:
        merged.pop("hidden_size", None)
    return Keys(merged, field, defaults_of(kind)), kind, outside


def _refuse(kind: str, keys: Keys) -> None:
    if kind in _NOT_MODELLED:
        raise keys.error("model_type", f"{kind} ({_NOT_MODELLED[kind]})", _ALLOWED)
    for key in _NOT_READ:
        if keys.config.get(key) and _READ_BY.get(key) != kind:
            raise keys.error(key, keys.config[key], f"not set; {_ALLOWED}")
    if keys.config.get("is_encoder_decoder") is True:
        raise keys.error("is_encoder_decoder", True, "false: models of one decoder")
    states = any(
        keys.config.get(key) for key in ("mamba_num_heads", "mamba_n_heads", "mamba_d_state")
    )
    listed = ("layer_types", "hybrid_override_pattern", "layers_block_type", "attn_layer_indices",
              "attn_layer_period")  # fmt: skip
    if states and kind != "falcon_h1" and not any(key in keys for key in listed):
        raise keys.error("layer_types", None, "the kind of each layer, not only Mamba keys")


def _mixer(keys: Keys, kind: str, hidden: int, heads: attention.Heads, which: str) -> Mixer:
    if which in (layers.FULL, layers.SLIDING):
        return attention.attention(keys, kind, hidden, heads, which == layers.SLIDING)
    if which == layers.LINEAR:
        if "linear_num_value_heads" in keys:
            return recurrent.gated_delta_net(keys, hidden)
        if kind.startswith("minimax"):
            return recurrent.lightning(keys, hidden)
        if kind == "kimi_linear":
            return recurrent.kimi_delta(keys, hidden)
        raise keys.error("layer_types", f"linear_attention of {kind}", "that of Qwen or MiniMax")
    if which == layers.MAMBA:
        return recurrent.mamba1(keys, hidden) if kind == "jamba" else recurrent.mamba2(keys, hidden)
    if which in compressed.BY_RATIO.values():
        return compressed.mixer(keys, hidden, which)
    if which == layers.CONVOLUTION:
        return recurrent.short_convolution(keys, hidden)
    if which == layers.BOTH:
        one = attention.attention(keys, kind, hidden, heads, sliding=False)
        other = recurrent.mamba2(keys, hidden)
        return Mixer("full", (*one.matrices, *other.matrices), one.cached, 0, other.state_bytes,
                     other.splits, one.kv_heads)  # fmt: skip
    return NO_MIXER


def _with(mixer: Mixer, more: tuple[Matrix, ...]) -> Mixer:
    if not more:
        return mixer
    return replace(mixer, matrices=(*mixer.matrices, *more))


def _expert_params(
    total: float, experts: feedforward.Experts | None, count: int, hidden: int
) -> float:
    """Mean number of weights of one expert over the layers. 0 stands for the default (a gated MLP),
    unless the mean is below three quarters of the default."""
    if experts is None:
        return 0.0
    mean = total / experts.count / count
    usual = 3.0 * hidden * experts.width
    return mean if mean < 0.75 * usual else 0.0


def _quantisation(*places: Keys) -> Keys | None:
    for where in places:
        if (how := where.section("quantization_config")) is not None:
            return how
    return None


def _tied(keys: Keys, kind: str) -> bool:
    if keys.value("tie_word_embeddings") is not None or keys.value("tie_embeddings") is None:
        return keys.flag("tie_word_embeddings")
    return keys.flag("tie_embeddings")


def _max_position(keys: Keys) -> int:
    longest = keys.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length",
                          "model_max_length", "max_sequence_length", otherwise=4096)  # fmt: skip
    return whole("max_position_embeddings", longest or 4096, 1, 10**8)
