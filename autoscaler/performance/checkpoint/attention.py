"""Attention layers: grouped queries and latent attention, with the size of their cache.

The numbers of heads may differ between kinds of layers (Gemma 4, MiMo).
"""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import Matrix, Mixer, column, row

_INDEX_SCALE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Heads:
    """The attention heads of full layers, as in the fields of a `ModelSpec`."""

    heads: int
    kv_heads: int
    size: int


def heads_of(keys: Keys, kind: str, hidden: int) -> Heads:
    """Query heads, KV heads and the size of a head in full layers."""
    heads = keys.number_of("num_attention_heads", "n_head", "n_heads", high=65_536)
    if "kv_lora_rank" in keys:
        # The latent cache counts as one KV head, because every GPU holds a full copy of it.
        rope, nope, value = _latent_sizes(keys)
        return Heads(heads, 1, (nope + rope + value) // 2)
    kv_heads = keys.number(
        "num_global_key_value_heads", "num_key_value_heads", "num_kv_heads",
        "multi_query_group_num", "n_head_kv", "num_query_groups", otherwise=0,
    )  # fmt: skip
    if kind == "falcon" and not keys.flag("new_decoder_architecture"):
        kv_heads = 1 if keys.flag("multi_query", otherwise=True) else heads
    if (inner := keys.section("attn_config")) is not None:
        kv_heads = inner.number("kv_n_heads", otherwise=kv_heads)
    if kv_heads > heads:
        raise keys.error("num_key_value_heads", kv_heads, f"a whole number from 1 to {heads}")
    size = keys.number("global_head_dim", "head_dim", "attention_head_dim", "kv_channels")
    return Heads(heads, kv_heads or heads, size or max(1, hidden // heads))


def attention(keys: Keys, kind: str, hidden: int, full: Heads, sliding: bool) -> Mixer:
    """The attention of one layer. sliding: whether it attends only within a window."""
    if "kv_lora_rank" in keys:
        return _latent(keys, hidden, full.heads)
    own = _sliding_heads(keys, full) if sliding else full
    values = keys.number("swa_v_head_dim" if sliding else "v_head_dim", "v_head_dim")
    value_size = values or own.size
    gate = 2 if keys.flag("attn_output_gate") else 1
    # Gemma 4: full layers use the keys as values.
    shared = keys.flag("attention_k_eq_v") and not sliding
    queries = gate * own.heads * own.size
    matrices = [
        _in("q_proj", queries, hidden, merged=True),
        _in("k_proj", own.kv_heads * own.size, hidden, own.kv_heads, merged=True),
        row(_named("o_proj"), hidden, own.heads * value_size, "num_attention_heads x head_dim"),
    ]
    if not shared:
        values = own.kv_heads * value_size
        matrices.append(_in("v_proj", values, hidden, own.kv_heads, merged=True))
    cached = own.kv_heads * (own.size + value_size)
    kind = "sliding" if sliding else "full"
    return Mixer(kind, tuple(matrices), cached, kv_heads=own.kv_heads)


def _sliding_heads(keys: Keys, full: Heads) -> Heads:
    if "global_head_dim" not in keys and "swa_num_key_value_heads" not in keys:
        return full
    return Heads(
        keys.number("swa_num_attention_heads", otherwise=full.heads),
        keys.number("swa_num_key_value_heads", "num_key_value_heads", otherwise=full.kv_heads),
        keys.number("swa_head_dim", "head_dim", otherwise=full.size),
    )


def _latent_sizes(keys: Keys) -> tuple[int, int, int]:
    rope = keys.number_of("qk_rope_head_dim", low=0, high=65_536)
    nope = keys.number_of("qk_nope_head_dim", high=65_536)
    return rope, nope, keys.number("v_head_dim", otherwise=nope) or nope


def _latent(keys: Keys, hidden: int, heads: int) -> Mixer:
    """Multi-head latent attention, including the indexer if the attention is sparse."""
    rank = keys.number_of("kv_lora_rank")
    rope, nope, value = _latent_sizes(keys)
    low = keys.number("q_lora_rank")
    queries = heads * (nope + rope)
    matrices = [
        Matrix(("self_attn.kv_a_proj_with_mqa",), rank + rope, hidden),
        _in("kv_b_proj", heads * (nope + value), rank),
        row(_named("o_proj"), hidden, heads * value, "num_attention_heads x v_head_dim"),
    ]
    if low:
        matrices += [Matrix(("self_attn.q_a_proj",), low, hidden), _in("q_b_proj", queries, low)]
    else:
        matrices.append(_in("q_proj", queries, hidden))
    more = 0
    if (index := keys.number("index_n_heads")) and low:
        size = keys.number_of("index_head_dim")
        matrices += [
            Matrix(("self_attn.indexer.wq_b",), index * size, low),
            Matrix(("self_attn.indexer.wk",), size, hidden),
            Matrix(("self_attn.indexer.weights_proj",), index, hidden, "small"),
        ]
        more = size + _INDEX_SCALE_BYTES
    return Mixer("full", tuple(matrices), rank + rope, more)


def _in(name: str, outputs: int, inputs: int, most_parts: int = 0, merged: bool = False) -> Matrix:
    key = "num_key_value_heads x head_dim" if most_parts else "num_attention_heads x head_dim"
    return column(_named(name), outputs, inputs, key, most_parts=most_parts, merged=merged)


def _named(name: str) -> tuple[str, ...]:
    return f"self_attn.{name}", f"mixer.{name}"
