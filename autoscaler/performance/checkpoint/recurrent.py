"""Layers without a growing cache: state-space layers, linear attention, short convolutions.

In every such layer, each sequence has a state of fixed size and the inputs of the convolution.
Source of the shapes: the state shapes of vLLM's Mamba layers.
"""

from __future__ import annotations

from autoscaler.domain.splits import Split
from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import Matrix, Mixer, column, row

_BF16_BYTES, _FLOAT32_BYTES = 2.0, 4.0
_STATE_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "auto": 2.0, "": 2.0}


def gated_delta_net(keys: Keys, hidden: int) -> Mixer:
    """The gated delta net of Qwen3-Next and Qwen3.5."""
    key_heads = keys.number_of("linear_num_key_heads", high=65_536)
    value_heads = keys.number_of("linear_num_value_heads", high=65_536)
    key_size = keys.number_of("linear_key_head_dim", high=65_536)
    value_size = keys.number_of("linear_value_head_dim", high=65_536)
    queries, values = key_heads * key_size, value_heads * value_size
    taps = keys.number("linear_conv_kernel_dim", otherwise=4, low=1)
    base = "linear_attn."
    merged = tuple(base + n for n in ("in_proj_qkvz", "in_proj_qkv"))
    gate = tuple(base + n for n in ("in_proj_qkvz", "in_proj_z"))
    key, value = (
        "linear_num_key_heads x linear_key_head_dim",
        "linear_num_value_heads x linear_value_head_dim",
    )
    matrices = (
        column(merged, queries, hidden, key, merged=True),
        column(merged, queries, hidden, key, merged=True),
        column(merged, values, hidden, value, merged=True),
        column(gate, values, hidden, value, merged=True),
        Matrix((f"{base}in_proj_ba", f"{base}in_proj_a"), 2 * value_heads, hidden, "small"),
        row((f"{base}out_proj",), hidden, values, value),
    )
    state = value_heads * value_size * key_size * _state_bytes(keys)
    state += (2 * queries + values) * (taps - 1) * _BF16_BYTES
    splits = (
        Split("linear_num_key_heads", key_heads),
        Split("linear_num_value_heads", value_heads),
    )
    return Mixer("recurrent", matrices, state_bytes=state, splits=splits)


def kimi_delta(keys: Keys, hidden: int) -> Mixer:
    """The delta attention of Kimi Linear, whose decay has one gate per channel."""
    inner = keys.section("linear_attn_config")
    assert inner is not None  # noqa: S101 - the kinds of the layers were read from it
    heads = inner.number_of("num_heads", high=65_536)
    size = inner.number_of("head_dim", high=65_536)
    taps = inner.number("short_conv_kernel_size", otherwise=4, low=1)
    width, key, base = heads * size, "num_heads x head_dim", "self_attn."
    gates = ["f"] if inner.flag("use_full_rank_gate") else ["f", "g"]
    matrices = [column((f"{base}{one}_proj",), width, hidden, key) for one in ("q", "k", "v")]
    if "g" not in gates:
        matrices.append(column((f"{base}g_proj",), width, hidden, key))
    for gate in gates:
        matrices.append(Matrix((f"{base}{gate}_a_proj",), size, hidden))
        matrices.append(column((f"{base}{gate}_b_proj",), width, size, key))
    matrices += [
        Matrix((f"{base}b_proj",), heads, hidden, "small"),
        Matrix((f"{base}conv1d",), 3 * width, taps, "small"),
        row((f"{base}o_proj",), hidden, width, key),
    ]
    state = width * size * _FLOAT32_BYTES + 3 * width * (taps - 1) * _BF16_BYTES
    splits = (Split("linear_attn_config.num_heads", heads),)
    return Mixer("recurrent", tuple(matrices), state_bytes=state, splits=splits)


def lightning(keys: Keys, hidden: int) -> Mixer:
    """The linear attention of MiniMax, with equal numbers of query, key and value heads."""
    heads = keys.number_of("num_attention_heads", high=65_536)
    size = keys.number("head_dim") or max(1, hidden // heads)
    width, key = heads * size, "num_attention_heads x head_dim"
    matrices = (
        *(column(("self_attn.qkv_proj",), width, hidden, key, merged=True) for _ in range(3)),
        column(("self_attn.output_gate",), width, hidden, key),
        row(("self_attn.out_proj",), hidden, width, key),
    )
    return Mixer("recurrent", matrices, state_bytes=width * size * _BF16_BYTES)


def mamba2(keys: Keys, hidden: int) -> Mixer:
    """Mamba-2 with grouped states (Nemotron-H, Granite 4 H, Bamba, Falcon-H1)."""
    heads = keys.number_of("mamba_num_heads", "mamba_n_heads", high=65_536)
    size = keys.number("mamba_head_dim", "mamba_d_head")
    inner = heads * size if size else keys.number("mamba_expand", "expand", otherwise=2) * hidden
    inner = keys.number("mamba_d_ssm") or inner
    groups = keys.number("n_groups", "mamba_n_groups", otherwise=1, low=1, high=65_536)
    state = keys.number_of("ssm_state_size", "mamba_d_state", high=65_536)
    taps = keys.number("conv_kernel", "mamba_d_conv", otherwise=4, low=1)
    grouped = 2 * groups * state
    names = ("mixer.in_proj", "mamba.in_proj")
    matrices = (
        Matrix(names, 2 * inner + grouped + heads, hidden),
        Matrix(("mixer.conv1d", "mamba.conv1d"), inner + grouped, taps, "small"),
        row(("mixer.out_proj", "mamba.out_proj"), hidden, inner, "mamba_num_heads x head_dim"),
    )
    splits = [Split("mamba_num_heads", heads)]
    if groups > 1:
        splits.append(Split("n_groups", groups))
    bytes_ = inner * state * _state_bytes(keys) + (inner + grouped) * (taps - 1) * _BF16_BYTES
    return Mixer("recurrent", matrices, state_bytes=bytes_, splits=tuple(splits))


def mamba1(keys: Keys, hidden: int) -> Mixer:
    """The first Mamba (Jamba)."""
    inner = keys.number("mamba_expand", "expand", otherwise=2, low=1) * hidden
    state = keys.number_of("mamba_d_state", high=65_536)
    taps = keys.number("mamba_d_conv", otherwise=4, low=1)
    rank = keys.number("mamba_dt_rank") or -(-hidden // 16)
    matrices = (
        column(("mamba.in_proj",), 2 * inner, hidden, "mamba_expand x hidden_size"),
        Matrix(("mamba.conv1d",), inner, taps, "small"),
        row(("mamba.x_proj",), rank + 2 * state, inner, "mamba_expand x hidden_size"),
        column(("mamba.dt_proj",), inner, rank, "mamba_expand x hidden_size"),
        Matrix(("mamba.A_log",), inner, state, "small"),
        row(("mamba.out_proj",), hidden, inner, "mamba_expand x hidden_size"),
    )
    bytes_ = inner * state * _state_bytes(keys) + inner * (taps - 1) * _BF16_BYTES
    return Mixer("recurrent", matrices, state_bytes=bytes_)


def short_convolution(keys: Keys, hidden: int) -> Mixer:
    """The gated convolution of LFM2."""
    taps = keys.number_of("conv_L_cache", high=1024)
    width = keys.number("conv_dim", otherwise=hidden, low=1)
    matrices = (
        column(("conv.in_proj",), 3 * width, hidden, "conv_dim"),
        Matrix(("conv.conv",), width, taps, "small"),
        row(("conv.out_proj",), hidden, width, "conv_dim"),
    )
    return Mixer("recurrent", matrices, state_bytes=width * (taps - 1) * _BF16_BYTES)


def _state_bytes(keys: Keys) -> float:
    name = keys.text("mamba_ssm_cache_dtype", "mamba_ssm_dtype").removeprefix("torch.")
    if name not in _STATE_BYTES:
        raise keys.error("mamba_ssm_cache_dtype", name, "float32, bfloat16, float16 or auto")
    return _STATE_BYTES[name]
