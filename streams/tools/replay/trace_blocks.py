"""The blocks of prompts in a trace with block hashes (`hash_ids`), and their hit rate.

A trace does not name the size of its blocks. It follows from the lengths of the prompts.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

_SIZES = tuple(2**power for power in range(13))
"""The sizes of a block, in tokens, that a trace may have."""


def block_size(inputs: Sequence[int], hashes: Sequence[array[int]]) -> int:
    """Tokens of a block: the largest size for which each prompt has as many hashes as blocks, with
    or without its last, partial block; 0 if no size fits, so that the hashes are of no use."""
    sizes = [*_SIZES] if hashes else []
    for tokens, own in zip(inputs, hashes, strict=True) if hashes else ():
        if len(own):
            sizes = [size for size in sizes if tokens // size <= len(own) <= -(-tokens // size)]
    return sizes[-1] if sizes else 0


def full_blocks(tokens: int, hashes: array[int], size: int) -> array[int]:
    """The hashes of the full blocks of a prompt. Engines cache no partial block."""
    return hashes[: tokens // size]


def endless_hit_rate(inputs: Sequence[int], blocks: Sequence[array[int]], size: int) -> float:
    """Share of all prompt tokens that one endless cache would hold, without evictions."""
    cached: set[int] = set()
    hits = 0
    for tokens, own in zip(inputs, blocks, strict=True):
        most = (tokens - 1) // size
        for at, value in enumerate(own):
            if value not in cached:
                cached.update(own[at:])
                break
            hits += size if at < most else 0
    return hits / sum(inputs) if len(inputs) else 0.0
