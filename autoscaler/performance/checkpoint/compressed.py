"""The attention of DeepSeek V4: a window of tokens, and compressed entries for all earlier ones.

Each layer keeps a window of whole entries. A layer with a ratio also keeps one entry per `ratio`
tokens; with ratio 4 an indexer selects entries, with ratio 128 all are read. Sizes as vLLM 0.32
allocates them (`vllm/models/deepseek_v4`).
"""

from __future__ import annotations

from dataclasses import replace

from autoscaler.domain.splits import Split
from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import Matrix, Mixer, column, row
from autoscaler.performance.quantization.scheme import Scheme
from autoscaler.performance.quantization.storage import MXFP4, NVFP4

KIND = "deepseek_v4"
WINDOW_ALONE = "window"
BY_RATIO = {0: WINDOW_ALONE, 1: WINDOW_ALONE, 4: "compressed by 4", 128: "compressed by 128"}
_RATIOS = {name: ratio for ratio, name in BY_RATIO.items() if ratio > 1}
# Cache entries: the rotated part is BF16, all other numbers are FP8 with a scale byte per 64.
_ROPE_BYTES, _FP8_GROUP = 2, 64
_INDEX_SCALE_BYTES = 4
_STATE_BYTES = 4.0
_KV_BITS = 8.0


def attended_tokens(keys: Keys) -> int:
    """Maximal number of entries that a token reads in a layer of ratio 4: the window plus the
    selection."""
    return keys.number_of("sliding_window") + keys.number("index_topk")


def mixer(keys: Keys, hidden: int, which: str) -> Mixer:
    """The attention of a layer of the kind `which`, one of `BY_RATIO`."""
    heads = keys.number_of("num_attention_heads", high=65_536)
    size = keys.number_of("head_dim", high=65_536)
    low, out = keys.number_of("q_lora_rank"), keys.number_of("o_lora_rank")
    groups = keys.number_of("o_groups", high=heads)
    window = keys.number_of("sliding_window")
    rope = keys.number("qk_rope_head_dim", high=size)
    if heads * size % groups:
        raise keys.error("o_groups", groups, f"a divisor of {heads * size}")
    matrices = [
        Matrix(("self_attn.wq_a",), low, hidden),
        Matrix(("self_attn.wkv",), size, hidden),
        column(("self_attn.wq_b",), heads * size, low, "num_attention_heads x head_dim"),
        column(("self_attn.wo_a",), groups * out, heads * size // groups, "o_groups x o_lora_rank"),
        row(("self_attn.wo_b",), hidden, groups * out, "o_groups x o_lora_rank"),
    ]
    entry = (size - rope) + rope * _ROPE_BYTES + -(-(size - rope) // _FP8_GROUP) + 1
    ratio, cached, state = _RATIOS.get(which, 0), 0.0, float(window * entry)
    if ratio:
        parts, bytes_ = _compressor("self_attn.compressor", ratio, size, hidden)
        matrices += parts
        cached, state = entry / ratio, state + bytes_
    if ratio == min(_RATIOS.values()):
        index = keys.number_of("index_n_heads", high=65_536)
        index_size = keys.number_of("index_head_dim", high=65_536)
        parts, bytes_ = _compressor("self_attn.indexer.compressor", ratio, index_size, hidden)
        matrices += [
            Matrix(("self_attn.indexer.wq_b",), index * index_size, low),
            Matrix(("self_attn.indexer.weights_proj",), index, hidden, "small"),
            *parts,
        ]
        cached += (index_size + _INDEX_SCALE_BYTES) / ratio
        state += bytes_
    splits = (Split("o_groups", groups),)
    return Mixer("sliding", tuple(matrices), 0, cached, state, splits)


def _compressor(name: str, ratio: int, size: int, hidden: int) -> tuple[list[Matrix], float]:
    """The matrices that compress `ratio` tokens into one entry, and the state of one sequence. With
    ratio 4, neighbouring entries overlap, which doubles both."""
    width = size * (2 if ratio == min(_RATIOS.values()) else 1)
    matrices = [Matrix((f"{name}.{one}",), width, hidden, "small") for one in ("wkv", "wgate")]
    tokens = ratio * width // size
    return matrices, tokens * 2 * width * _STATE_BYTES


def scheme(keys: Keys, base: Scheme) -> Scheme:
    """The storage of a checkpoint; `expert_dtype` states the storage of routed experts. The KV
    cache has its own format, whatever the checkpoint says."""
    expert_dtype = keys.text("expert_dtype") or "fp4"
    quantisation = keys.section("quantization_config")
    algorithm = quantisation.text("moe_quant_algo") if quantisation is not None else ""
    if expert_dtype not in ("fp4", "fp8"):
        raise keys.error("expert_dtype", expert_dtype, "fp4 or fp8")
    if algorithm not in ("", "NVFP4"):
        raise keys.error("quantization_config: moe_quant_algo", algorithm, "NVFP4")
    experts = NVFP4 if algorithm else MXFP4 if expert_dtype == "fp4" else None
    return replace(base, experts=experts, kv_bits=_KV_BITS)
