"""The blocks of an engine's KV cache, with vLLM's rules of automatic prefix caching.

Only full blocks are cached. The hash of a block stands for all tokens up to its end. A block that
no request holds stays cached until it is the first of the free queue and a new block is needed. A
request returns its blocks last block first, so that the end of a prefix is evicted before its
beginning. Source: vLLM, v1/core/block_pool.py and kv_cache_manager.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockCache:
    """`blocks` blocks. Blocks are numbers from 0 on."""

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self._holders = [0] * blocks
        self._hashes: list[int | None] = [None] * blocks
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))  # evicted first
        self._by_hash: dict[int, dict[int, None]] = {}  # several blocks may have the same tokens

    @property
    def free(self) -> int:
        """Blocks that no request holds, cached ones included."""
        return len(self._free)

    @property
    def cached(self) -> int:
        """Different hashes in the cache."""
        return len(self._by_hash)

    def match(self, hashes: Sequence[int], most: int) -> list[int]:
        """The blocks of the longest cached prefix of `hashes`, at most `most` blocks."""
        found = []
        for value in hashes[:most]:
            same = self._by_hash.get(value)
            if same is None:
                break
            found.append(next(iter(same)))
        return found

    def unheld(self, blocks: Sequence[int]) -> int:
        """Number of `blocks` that no request holds."""
        return sum(1 for block in blocks if not self._holders[block])

    def hold(self, blocks: Sequence[int]) -> None:
        """Count one more request that holds each of `blocks`."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """`count` blocks for new tokens, held once. Their former content leaves the cache. The
        caller has checked `free`."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            self._forget(block)
            self._holders[block] = 1
            taken.append(block)
        return taken

    def store(self, block: int, value: int) -> None:
        """Cache a full block under its hash. Does nothing if the block is cached already."""
        if self._hashes[block] is None:
            self._hashes[block] = value
            self._by_hash.setdefault(value, {})[block] = None

    def give_back(self, blocks: Sequence[int]) -> None:
        """Count one request less at each of `blocks`, which are in the order of their tokens."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None

    def flush(self) -> None:
        """Forget all cached blocks, also those that requests hold."""
        for block in range(self.blocks):
            self._forget(block)

    def _forget(self, block: int) -> None:
        value = self._hashes[block]
        if value is None:
            return
        self._hashes[block] = None
        same = self._by_hash[value]
        del same[block]
        if not same:
            del self._by_hash[value]
