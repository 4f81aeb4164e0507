"""Feed-forward layers: dense ones, and routed experts with their shared experts."""

from __future__ import annotations

from dataclasses import dataclass

from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import OTHERS, FeedForward, Matrix, column, row
from autoscaler.performance.checkpoint.purposes import ENCODERS, GATED_ENCODERS

# Model types whose MLP has two matrices (up, down) instead of three.
_PLAIN = {
    "gpt2", "opt", "bloom", "falcon", "mpt", "phi", "gpt_neox", "gpt_bigcode", "starcoder2",
    "nemotron", "gptj", "nemotron_h", *(ENCODERS - GATED_ENCODERS),
}  # fmt: skip
# Model types whose key states the total width of the two merged matrices of a gated MLP.
_MERGED = {"qwen", "molmo"}
_LLAMA4 = ("llama4", "llama4_text")
_MOST_EXPERTS = 100_000


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts of one layer. width: width of each expert. inputs: input width of each
    expert. others: (number, width) of further groups of experts, which only tokens of images use.
    """

    count: int
    chosen: int
    width: int
    inputs: int
    shared: int
    others: tuple[tuple[int, int], ...] = ()


def intermediate_of(keys: Keys, kind: str, hidden: int) -> int:
    """Width of a dense MLP, from the key that models of this type use."""
    width = keys.number(
        "block_ff_dim", "intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"
    )
    width = width or keys.number("expansion_ratio", otherwise=4, low=1, high=1024) * hidden
    if kind == "lfm2" and keys.flag("block_auto_adjust_ff_dim", otherwise=True):
        # LFM2 uses two thirds of the stated width, times a factor, rounded up to a multiple.
        width = int(2 * width / 3)
        width = int(keys.real("block_ffn_dim_multiplier", 1.0, 0.0, 100.0) * width)
        multiple = keys.number("block_multiple_of", otherwise=256, low=1)
        width = multiple * -(-width // multiple)
    return max(1, width // 2 if kind in _MERGED else width)


def experts_of(keys: Keys, kind: str, hidden: int, dense: int) -> Experts | None:
    """The experts to which layers route tokens; None without experts."""
    inner = keys.section("ffn_config") or Keys({}, keys.field, {})
    counts = keys.whole_list(
        "n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts",
        high=_MOST_EXPERTS,
    )  # fmt: skip
    count = counts[0] if counts else inner.number("moe_num_experts", high=_MOST_EXPERTS)
    if count <= 1:
        return None
    chosen = keys.number(
        "num_experts_per_tok", "num_experts_per_token", "moe_k", "moe_topk",
        "experts_per_token", "top_k_experts", "moe_top_k",
    ) or inner.number("moe_top_k", otherwise=1)  # fmt: skip
    if chosen > count:
        raise keys.error("num_experts_per_tok", chosen, f"at most the {count} experts")
    widths = keys.whole_list(
        "moe_intermediate_size", "expert_intermediate_size", "expert_ffn_hidden_size"
    )
    if (len(widths) != len(counts) and len({*widths}) > 1) or len(widths) == 1 < len(counts):
        raise keys.error("moe_intermediate_size", widths, "one width per number of experts")
    width = (widths[0] if widths else 0) or inner.number("ffn_hidden_size", otherwise=dense)
    inputs = keys.number("moe_latent_size", "routed_expert_hidden_size", otherwise=hidden)
    shared = _shared(keys, kind, width, dense)
    others = tuple(zip(counts[1:], widths[1:], strict=False)) if len(counts) > 1 else ()
    return Experts(count, max(1, chosen), max(1, width), max(1, inputs), shared, others)


def dense(keys: Keys, kind: str, hidden: int, width: int) -> FeedForward:
    """The MLP of a layer without experts."""
    if kind in _LLAMA4:
        width = keys.number("intermediate_size_mlp", otherwise=width, low=1)
    elif kind == "granitemoehybrid":
        width = keys.number("shared_intermediate_size", otherwise=width, low=1)
    else:
        width = keys.number("dense_intermediate_size", otherwise=width) or width
    return FeedForward(_mlp(kind, "mlp", hidden, hidden, width, "mlp", "intermediate_size"))


def routed(keys: Keys, kind: str, hidden: int, experts: Experts) -> FeedForward:
    """A layer with experts: the router, the experts, and the shared experts that every token
    passes."""
    matrices = [Matrix(("mlp.gate", "mlp.router"), experts.count, hidden, "router")]
    # Gemma 4 has experts in addition to the MLP; in other models they replace it.
    path = "experts.0" if kind.startswith("gemma4") else "mlp.experts.0"
    if experts.inputs != hidden:
        matrices += [
            Matrix(("mixer.fc1_latent_proj",), experts.inputs, hidden, "shared"),
            Matrix(("mixer.fc2_latent_proj",), hidden, experts.inputs, "shared"),
        ]
    if experts.shared:
        key = "shared_expert_intermediate_size"
        matrices += _mlp(kind, _shared_path(kind), hidden, hidden, experts.shared, "shared", key)
    key = "moe_intermediate_size" if "moe_intermediate_size" in keys else "intermediate_size"
    each = (experts.inputs, experts.inputs, experts.width)
    matrices += _mlp(kind, path, *each, "expert", key, experts.count)
    for number, width in experts.others:
        wide = (experts.inputs, experts.inputs, max(1, width))
        matrices.append(Matrix(("mlp.gate", "mlp.router"), number, hidden, "router"))
        matrices += _mlp(kind, path, *wide, OTHERS, key, number)
    return FeedForward(tuple(matrices), experts.count, experts.chosen)


def _shared_path(kind: str) -> str:
    return "mlp" if kind.startswith("gemma4") else "mlp.shared_expert"


def _mlp(
    kind: str, path: str, outputs: int, inputs: int, width: int, part: str, key: str,
    copies: int = 1,
) -> tuple[Matrix, ...]:  # fmt: skip
    up = [column(_names(path, "up_proj", "w3"), width, inputs, key, part, copies)]
    if kind not in _PLAIN:
        up.append(column(_names(path, "gate_proj", "w1"), width, inputs, key, part, copies))
    return (*up, row(_names(path, "down_proj", "w2"), outputs, width, key, part, copies))


def _names(path: str, long: str, short: str) -> tuple[str, ...]:
    places = [path]
    if path.startswith("mlp."):
        rest = path.removeprefix("mlp.")
        places += [f"block_sparse_moe.{rest}", f"feed_forward.{rest}", f"mixer.{rest}"]
        if rest == "shared_expert":
            places += ["mlp.shared_experts", "mixer.shared_experts", "share_expert"]
            places.append("block_sparse_moe.shared_experts")
    elif path == "mlp":
        places += ["feed_forward", "mixer", "shared_mlp"]
    return tuple(f"{place}.{name}" for place in places for name in (long, short))


def _shared(keys: Keys, kind: str, expert: int, dense_width: int) -> int:
    """Width of the MLP that every token passes in addition to the token's experts."""
    width = keys.number(
        "shared_expert_intermediate_size", "moe_shared_expert_intermediate_size",
        "share_expert_dim", "shared_expert_dim",
    )  # fmt: skip
    if kind == "granitemoehybrid" or kind.startswith("minimax_m1"):
        width = keys.number("shared_intermediate_size")
    if kind in _LLAMA4 or keys.flag("enable_moe_block"):
        return dense_width
    many = keys.number("n_shared_experts", "num_shared_experts", "num_shared_expert",
                       "moe_num_shared_experts", high=_MOST_EXPERTS)  # fmt: skip
    return width or many * expert
