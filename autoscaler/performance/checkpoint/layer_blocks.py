"""Layers of different shapes; each has a configuration of its own (Nemotron NAS, DeciLM)."""

from __future__ import annotations

from autoscaler.performance.checkpoint.attention import Heads, attention
from autoscaler.performance.checkpoint.feedforward import dense
from autoscaler.performance.checkpoint.keys import Keys
from autoscaler.performance.checkpoint.matrices import (
    NO_FEED_FORWARD,
    NO_MIXER,
    FeedForward,
    Mixer,
)

KIND = "nemotron-nas"
_MULTIPLE = 256


def blocks_of(
    keys: Keys, hidden: int, heads: Heads, layers: int
) -> list[tuple[Mixer, FeedForward]]:
    """The layers in `block_configs`. Raises InvalidValue if their number differs from `layers`, or
    if a linear layer replaces a block."""
    blocks = keys.listed("block_configs")
    if len(blocks) != layers:
        raise keys.error("block_configs", f"{len(blocks)} layers", f"{layers}")
    made = []
    for index, block in enumerate(blocks):
        place = Keys({"block": block}, f"{keys.field}: block_configs: {index}", {})
        own = place.section("block") or place
        made.append((_mixer(keys, own, hidden, heads), _forward(keys, own, hidden)))
    return made


def kv_heads_of(keys: Keys, heads: int) -> int:
    """Number of KV heads of the layers with attention. If layers differ, it is the smallest number,
    because tensor parallelism must copy these heads first."""
    groups = [1]
    for block in keys.listed("block_configs"):
        own = Keys({"block": block}, keys.field, {}).section("block")
        part = own.section("attention") if own is not None else None
        if part is not None:
            groups.append(part.number("n_heads_in_group", otherwise=1, low=1, high=heads))
    return max(1, heads // max(groups))


def _mixer(keys: Keys, block: Keys, hidden: int, heads: Heads) -> Mixer:
    own = _part(block, "attention")
    if own is None:
        return NO_MIXER
    group = own.number_of("n_heads_in_group", high=heads.heads)
    shape = Heads(heads.heads, max(1, heads.heads // group), heads.size)
    return attention(keys, KIND, hidden, shape, sliding=False)


def _forward(keys: Keys, block: Keys, hidden: int) -> FeedForward:
    own = _part(block, "ffn")
    if own is None:
        return NO_FEED_FORWARD
    width = int(2 * own.real("ffn_mult", 4.0, 1e-3, 1000.0) * hidden / 3)
    return dense(keys, KIND, hidden, _MULTIPLE * -(-width // _MULTIPLE))


def _part(block: Keys, name: str) -> Keys | None:
    own = block.section(name)
    if own is None or own.flag("no_op"):
        return None
    if own.flag("replace_with_linear"):
        raise own.error("replace_with_linear", True, "false: attention or a gated MLP, or no_op")
    return own
