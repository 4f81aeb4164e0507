"""The blocks of an engine's KV cache, as vLLM divides the memory of one GPU into them.

vLLM 0.32 puts layers with equal caches into groups of equal size (`v1/core/kv_cache_utils`). All
groups share one pool, in which every block has the same number of bytes. A group of layers with a
window holds the blocks of the window only, a group of recurrent layers one block per sequence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoscaler.domain.cache_layers import CacheLayers

BLOCK_TOKENS = 16
_EVEN = 1.5  # group sizes up to this ratio are padded to the larger one
_MOST_TOKENS = 10**8


@dataclass(frozen=True, slots=True)
class _Group:
    """Blocks that one sequence takes in `count` groups of layers. tokens: tokens per block; 0: one
    block holds the state of a sequence."""

    count: int
    tokens: int
    window: int = 0

    def blocks(self, sequence: int, in_flight: int) -> int:
        if not self.tokens:
            return self.count
        if not self.window:
            return self.count * -(-sequence // self.tokens)
        kept = min(self.window - 1 + in_flight, sequence)
        # A window may begin in the middle of a block.
        return self.count * (-(-kept // self.tokens) + 1)


@dataclass(frozen=True, slots=True)
class KvPool:
    """The blocks of the KV cache on one GPU; with tensor parallelism each GPU has as many.

    blocks: number of blocks. block_bytes: size of one block. fixed_blocks: blocks that each
    sequence takes whatever its length, as a fraction of whole blocks. in_flight: maximal tokens of
    a sequence that an iteration adds.
    """

    blocks: float
    block_bytes: float
    groups: tuple[_Group, ...]
    fixed_blocks: float = 0.0
    in_flight: int = 0

    def sequence_blocks(self, tokens: float, in_flight: int = 0) -> float:
        """Blocks that a sequence of `tokens` takes."""
        length = max(1, math.ceil(tokens))
        return self.fixed_blocks + sum(one.blocks(length, in_flight) for one in self.groups)

    def sequences_at(self, tokens: float) -> float:
        """Number of sequences of `tokens` tokens that fit."""
        return self.blocks / self.sequence_blocks(tokens)

    def tokens_at(self, tokens: float) -> float:
        """Tokens of all sequences that fit, if each has `tokens` tokens."""
        return self.sequences_at(tokens) * tokens

    def reported_tokens(self, longest: int) -> float:
        """The size of the KV cache as an engine logs it that starts with a `max_model_len` of
        `longest`."""
        return self.blocks / self.sequence_blocks(longest, self.in_flight) * longest

    def longest_tokens(self) -> float:
        """The longest sequence that fits; 0 if none fits."""
        if self.sequence_blocks(1, self.in_flight) > self.blocks:
            return 0.0
        low, high = 1, _MOST_TOKENS
        while high - low > 0:
            middle = (low + high + 1) // 2
            if self.sequence_blocks(middle, self.in_flight) <= self.blocks:
                low = middle
            else:
                high = middle - 1
        return float(low)

    @property
    def state_blocks(self) -> int | None:
        """Number of sequences above which vLLM refuses to start, because each needs a block for its
        state; None for models without recurrent layers."""
        return int(self.blocks) if any(not one.tokens for one in self.groups) else None

    def scaled(self, factor: float) -> KvPool:
        """The pool with `factor` times the blocks."""
        return replace(self, blocks=self.blocks * factor)


def kv_pool(
    layers: Sequence[CacheLayers], token_bytes: float, free_bytes: float, tp: int, in_flight: int,
    held: float = 1.0, state_copies: int = 1,
) -> KvPool:  # fmt: skip
    """The pool of `free_bytes` per GPU.

    token_bytes: bytes that one token adds to the cache of the whole model. tp: GPUs that share each
    layer. in_flight: maximal tokens per iteration. held: share of the layers on these GPUs.
    state_copies: blocks per sequence in a group of recurrent layers.
    """
    sizes = [one.share * token_bytes / min(tp, one.kv_heads) for one in layers]
    if any(one.state_bytes and not one.recurrent for one in layers):
        return _packed(layers, sizes, free_bytes, tp, in_flight, held)
    if not any(one.recurrent for one in layers) and len({one.window for one in layers}) == 1:
        block = BLOCK_TOKENS * sum(n.count * size for n, size in zip(layers, sizes, strict=True))
        group = _Group(1, BLOCK_TOKENS, layers[0].window)
        return _pool(free_bytes, block * held, (group,), in_flight)
    page = max(BLOCK_TOKENS * size for size in sizes)
    states = [one.state_bytes / tp for one in layers if one.recurrent]
    if states and max(states) > page:
        # The smallest block of tokens that is as large as the state of a sequence.
        largest = max(sizes)
        page = BLOCK_TOKENS * largest * math.ceil(max(states) / (BLOCK_TOKENS * largest))
    counts = [one.count for one in layers]
    per_group = max(counts) if max(counts) < _EVEN * min(counts) else min(counts)
    groups = tuple(
        _Group(
            -(-one.count // per_group) * (state_copies if one.recurrent else 1),
            _tokens_in(page, size),
            one.window,
        )
        for one, size in zip(layers, sizes, strict=True)
    )
    return _pool(free_bytes, page * per_group * held, groups, in_flight)


def _packed(
    layers: Sequence[CacheLayers], sizes: Sequence[float], free_bytes: float, tp: int,
    in_flight: int, held: float,
) -> KvPool:  # fmt: skip
    """The pool of layers that store entries and a state of fixed size (compressed attention)."""
    block = BLOCK_TOKENS * sum(n.count * size for n, size in zip(layers, sizes, strict=True))
    state = sum(one.count * one.state_bytes / min(tp, one.kv_heads) for one in layers)
    group = _Group(1, BLOCK_TOKENS)
    pool = _pool(free_bytes, block * held, (group,), in_flight)
    return replace(pool, fixed_blocks=state / block)


def _tokens_in(page: float, size: float) -> int:
    return BLOCK_TOKENS * max(1, int(page / size / BLOCK_TOKENS + 1e-9)) if size else 0


def _pool(
    free_bytes: float, block_bytes: float, groups: tuple[_Group, ...], in_flight: int
) -> KvPool:
    blocks = float(math.floor(free_bytes / block_bytes)) if free_bytes > 0.0 else 0.0
    return KvPool(blocks, block_bytes, groups, 0.0, in_flight)
