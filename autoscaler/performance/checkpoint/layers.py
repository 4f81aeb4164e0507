"""The kind of each layer of a model: full or sliding attention, recurrent, dense, routed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from autoscaler.performance.checkpoint import compressed
from autoscaler.performance.checkpoint.keys import Keys

_K = TypeVar("_K")
_V = TypeVar("_V")

FULL, SLIDING, LINEAR, MAMBA, CONVOLUTION, NONE = (
    "full", "sliding", "linear", "mamba", "convolution", "none",
)  # fmt: skip
BOTH = "attention and mamba"
DENSE, ROUTED, NO_MLP = "dense", "routed", "none"
_MIXERS = {
    "full_attention": FULL, "attention": FULL, "full": FULL, "global": FULL,
    "deepseek_sparse_attention": FULL, "sliding_attention": SLIDING, "local": SLIDING,
    "chunked_attention": SLIDING,
    "linear_attention": LINEAR, "mamba": MAMBA, "mamba2": MAMBA, "conv": CONVOLUTION,
    "short_conv": CONVOLUTION,
}  # fmt: skip
_ONE_EACH = {"M": (MAMBA, NO_MLP), "*": (FULL, NO_MLP), "-": (NONE, DENSE), "E": (NONE, ROUTED)}
_ONE_EACH_WORDS = {
    "mamba": (MAMBA, NO_MLP), "linear_attention": (MAMBA, NO_MLP), "attention": (FULL, NO_MLP),
    "full_attention": (FULL, NO_MLP), "mlp": (NONE, DENSE), "moe": (NONE, ROUTED),
}  # fmt: skip
_MOST_LAYERS = 2000
_EVERY = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "gpt_oss": 2, "llama4": 4,
          "llama4_text": 4, "gemma3n_text": 5, "gemma4_text": 6}  # fmt: skip


def kinds_of(keys: Keys, kind: str, layers: int, routes: bool) -> list[tuple[str, str]]:
    """(mixer, feed-forward) of every layer. Raises InvalidValue, which names the kind, if a kind is
    unknown."""
    if (single := _single(keys, kind, layers)) is not None:
        return single
    mixers = _mixers(keys, kind, layers)
    experts = _routed(keys, layers) if routes else [False] * layers
    return [
        (mixer, ROUTED if sparse else DENSE) for mixer, sparse in zip(mixers, experts, strict=True)
    ]


def count_of(keys: Keys) -> int:
    """The number of layers. If no key states it, the length of the list of layer kinds."""
    names = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if not any(name in keys for name in names):
        for name in ("layers_block_type", "hybrid_override_pattern"):
            listed = keys.config.get(name)
            if isinstance(listed, list | str) and 0 < len(listed) <= _MOST_LAYERS:
                return len(listed)
    return keys.number_of(*names, high=_MOST_LAYERS)


def window_of(keys: Keys, kind: str) -> int:
    """Size of a sliding window in tokens; 0 without a window."""
    if kind == compressed.KIND:
        return compressed.attended_tokens(keys)
    window = keys.number("sliding_window", "sliding_window_size")
    if kind == "modernbert":
        return window or keys.number("local_attention")
    return window or (keys.number("attention_chunk_size") if "llama4" in kind else 0)


def _single(keys: Keys, kind: str, layers: int) -> list[tuple[str, str]] | None:
    """Nemotron-H: each layer is either a mixer or a feed-forward."""
    if kind != "nemotron_h":
        return None
    pattern = keys.config.get("hybrid_override_pattern")
    known: dict[str, tuple[str, str]] = _ONE_EACH
    name, listed = "hybrid_override_pattern", pattern
    if pattern is None:
        name, known = "layers_block_type", _ONE_EACH_WORDS
        listed = keys.listed(name)
    if not isinstance(listed, str | tuple) or len(listed) != layers:
        size = len(listed) if isinstance(listed, str | tuple) else 0
        raise keys.error(name, f"{size} layers", f"{layers}, as num_hidden_layers says")
    return [_lookup(keys, name, known, one) for one in listed]


def _mixers(keys: Keys, kind: str, layers: int) -> list[str]:
    window = window_of(keys, kind)
    found = _listed(keys, kind, layers)
    if found is None:
        found = _by_index(keys, kind, layers)
    if found is None:
        found = _by_window(keys, kind, layers, window)
    return [FULL if one == SLIDING and not window else one for one in found]


def _listed(keys: Keys, kind: str, layers: int) -> list[str] | None:
    """The mixers, from a list with one entry for each layer."""
    kinds = keys.listed("layer_types")
    if kinds and ("layer_types" in keys.config or len(kinds) == layers):
        if len(kinds) < layers:
            raise keys.error("layer_types", f"{len(kinds)} layers", f"{layers}")
        found = [_lookup(keys, "layer_types", _MIXERS, one) for one in kinds[:layers]]
        if LINEAR in found and "mamba_n_heads" in keys:
            found = [MAMBA if one == LINEAR else one for one in found]
        return found
    kinds = keys.listed("attn_type_list")
    if kinds:
        if len(kinds) < layers:
            raise keys.error("attn_type_list", f"{len(kinds)} layers", f"{layers}")
        both = {0: LINEAR, 1: FULL}
        return [_lookup(keys, "attn_type_list", both, one) for one in kinds[:layers]]
    pattern = keys.listed("hybrid_layer_pattern")
    if pattern:
        if len(pattern) < layers:
            raise keys.error("hybrid_layer_pattern", f"{len(pattern)} layers", f"{layers}")
        return [SLIDING if one else FULL for one in pattern[:layers]]
    if kind == "falcon_h1":
        return [BOTH] * layers
    if kind == compressed.KIND:
        ratios = keys.listed("compress_ratios")
        if len(ratios) < layers:
            raise keys.error("compress_ratios", f"{len(ratios)} layers", f"{layers}")
        by_ratio = compressed.BY_RATIO
        return [_lookup(keys, "compress_ratios", by_ratio, one) for one in ratios[:layers]]
    if kind == "kimi_linear":
        return _kimi_linear(keys, layers)
    return None


def _kimi_linear(keys: Keys, layers: int) -> list[str]:
    """Kimi Linear lists the layers of both kinds, counted from 1."""
    inner = keys.section("linear_attn_config")
    if inner is None:
        raise keys.error("linear_attn_config", None, "the layers of each kind")
    linear, full = inner.numbers("kda_layers"), inner.numbers("full_attn_layers")
    wanted = range(1, layers + 1)
    if linear & full or linear | full != frozenset(wanted):
        allowed = f"each layer from 1 to {layers} once, in kda_layers or full_attn_layers"
        raise keys.error("linear_attn_config", f"{len(linear | full)} layers", allowed)
    return [LINEAR if number in linear else FULL for number in wanted]


def _by_index(keys: Keys, kind: str, layers: int) -> list[str] | None:
    """The mixers, from the indices or the interval of the layers with full attention."""
    for name, other in (("full_attn_idxs", CONVOLUTION), ("attn_layer_indices", MAMBA)):
        if name in keys and (name in keys.config or kind in ("lfm2", "bamba")):
            full = keys.numbers(name)
            return [FULL if index in full else other for index in range(layers)]
    if "full_attention_interval" in keys and "linear_num_value_heads" in keys:
        every = keys.number("full_attention_interval", low=1)
        return [LINEAR if (index + 1) % every else FULL for index in range(layers)]
    if kind == "jamba":
        every = keys.number("attn_layer_period", otherwise=8, low=1)
        first = keys.number("attn_layer_offset", otherwise=4)
        return [FULL if index % every == first else MAMBA for index in range(layers)]
    return None


def _by_window(keys: Keys, kind: str, layers: int, window: int) -> list[str]:
    """Attention in all layers; some layers attend only within a window."""
    if not window or keys.value("use_sliding_window") is False:
        return [FULL] * layers
    every = keys.value("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(every, str):
        letters = {"L": SLIDING, "G": FULL}
        if not every or len(every) > layers:
            raise keys.error("sliding_window_pattern", every, "letters L and G")
        kinds = [_lookup(keys, "sliding_window_pattern", letters, one) for one in every]
        found = [kinds[index % len(kinds)] for index in range(layers)]
        # Transformers makes the last layer full, whatever the pattern says.
        return [*found[:-1], FULL] if kind == "exaone4" else found
    number = keys.number(
        "sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers"
    ) or _EVERY.get(kind)
    if number:
        return [SLIDING if (index + 1) % number else FULL for index in range(layers)]
    return [SLIDING] * layers


def _routed(keys: Keys, layers: int) -> list[bool]:
    """Whether each layer routes to experts."""
    pattern = keys.value("moe_layer_freq")
    if isinstance(pattern, list | tuple):
        return _padded([bool(one) for one in pattern], layers)
    kinds = keys.config.get("mlp_layer_types")
    if isinstance(kinds, list):
        return _padded([one != "dense" for one in kinds], layers)
    if isinstance(keys.value("moe_layers"), list) and (listed := keys.numbers("moe_layers")):
        return [index in listed for index in range(layers)]
    if "moe_layers_enum" in keys:
        numbers = {one.strip() for one in keys.text("moe_layers_enum").split(",")}
        return [str(index) in numbers for index in range(layers)]
    if "expert_layer_period" in keys:
        every = keys.number("expert_layer_period", low=1)
        offset = keys.number("expert_layer_offset")
        return [index % every == offset for index in range(layers)]
    first = keys.number("first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    step = keys.number("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval",
                       "moe_layer_freq", otherwise=1) or 1  # fmt: skip
    without = keys.numbers("mlp_only_layers")
    return [
        index >= first and index not in without and (index + 1) % step == 0
        for index in range(layers)
    ]


def _padded(found: list[bool], layers: int) -> list[bool]:
    return [*found[:layers], *[False] * (layers - len(found))]


def _lookup(keys: Keys, name: str, known: Mapping[_K, _V], one: object) -> _V:
    """The value of `one` in `known`. Compares the keys one by one, because `one` comes from the
    file and may not be hashable."""
    found = [value for key, value in known.items() if key == one]
    if not found:
        short = one if isinstance(one, str | int) else type(one).__name__
        allowed = ", ".join(map(str, known))
        raise keys.error(name, short, f"layers of {allowed}")
    return found[0]
