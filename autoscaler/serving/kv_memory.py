"""The KV cache of a batching machine: which sequences fit, and which prompt tokens it has already.

`TokenMemory` counts tokens and caches no prefix. `BlockMemory` counts blocks and caches prefixes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autoscaler.serving.batch_sequence import BatchSequence
from autoscaler.serving.block_cache import BlockCache
from autoscaler.serving.engine_requests import Limits, Part


class KvMemory(Protocol):
    """Interface of the memory. `decodes` are the sequences that add a token in each step."""

    @property
    def usage(self) -> float:
        """Share that sequences hold."""
        ...

    def could_hold(self, tokens: int) -> bool:
        """Whether the empty memory holds one sequence of `tokens` tokens."""
        ...

    def can_grow(self, decodes: Sequence[BatchSequence]) -> bool:
        """Whether each of `decodes` can add its next token."""
        ...

    def steps_until_full(self, decodes: Sequence[BatchSequence]) -> int:
        """Steps, at least 1, for which `can_grow` stays true. The first step is possible."""
        ...

    def admit(self, sequence: BatchSequence, decodes: Sequence[BatchSequence]) -> bool:
        """Reserve memory for the prompt of `sequence`, and skip its cached tokens; False if the
        prompt does not fit in addition to the next tokens of `decodes`."""
        ...

    def grow(self, sequence: BatchSequence, tokens: int) -> None:
        """Reserve memory for further `tokens` of `sequence`."""
        ...

    def note_computed(self, sequence: BatchSequence, context: int) -> None:
        """The first `context` tokens of `sequence` are in the memory, or will be at the end of the
        iteration that begins."""
        ...

    def free(self, sequence: BatchSequence) -> None:
        """Free everything that `sequence` holds."""
        ...


class TokenMemory:
    """Memory for `limits.kv_tokens` tokens."""

    def __init__(self, limits: Limits) -> None:
        self._tokens = limits.kv_tokens
        self._used = 0

    @property
    def usage(self) -> float:
        return self._used / self._tokens

    def could_hold(self, tokens: int) -> bool:
        return tokens <= self._tokens

    def can_grow(self, decodes: Sequence[BatchSequence]) -> bool:
        return self._used + _growth(decodes) <= self._tokens

    def steps_until_full(self, decodes: Sequence[BatchSequence]) -> int:
        free = self._tokens - self._used
        return 1 + max(0, free - _growth(decodes)) // len(decodes)

    def admit(self, sequence: BatchSequence, decodes: Sequence[BatchSequence]) -> bool:
        if self._used + _growth(decodes) + sequence.todo > self._tokens:
            return False
        self.grow(sequence, sequence.todo)
        return True

    def grow(self, sequence: BatchSequence, tokens: int) -> None:
        sequence.reserved += tokens
        self._used += tokens

    def note_computed(self, sequence: BatchSequence, context: int) -> None:
        pass

    def free(self, sequence: BatchSequence) -> None:
        self._used -= sequence.reserved
        sequence.reserved = 0


class BlockMemory:
    """Memory of blocks of `limits.block_tokens` tokens, with a prefix cache.

    queried_tokens, hit_tokens: prompt tokens that were looked up in the cache, and the part that
    was in it, as vLLM's counters count them: once per request, and not again after a preemption.
    """

    def __init__(self, limits: Limits) -> None:
        self._block_tokens = limits.block_tokens
        self.cache = BlockCache(-(-limits.kv_tokens // limits.block_tokens))
        self._held: dict[int, list[int]] = {}  # blocks by request, in the order of their tokens
        self.queried_tokens = 0
        self.hit_tokens = 0

    @property
    def usage(self) -> float:
        return 1.0 - self.cache.free / self.cache.blocks

    def could_hold(self, tokens: int) -> bool:
        return self._blocks(tokens) <= self.cache.blocks

    def can_grow(self, decodes: Sequence[BatchSequence]) -> bool:
        return self._growth_blocks(decodes) <= self.cache.free

    def steps_until_full(self, decodes: Sequence[BatchSequence]) -> int:
        spare = min(-one.reserved % self._block_tokens for one in decodes)
        return max(1, spare + self.cache.free // len(decodes) * self._block_tokens)

    def admit(self, sequence: BatchSequence, decodes: Sequence[BatchSequence]) -> bool:
        tokens, work = sequence.todo, sequence.work
        hits: list[int] = []
        if work.part is not Part.DECODE:
            # The last token is always computed, because its output is the next token.
            hits = self.cache.match(work.blocks, (tokens - 1) // self._block_tokens)
        new = self._blocks(tokens) - len(hits)
        if new + self.cache.unheld(hits) + self._growth_blocks(decodes) > self.cache.free:
            return False
        self.cache.hold(hits)
        self._held[work.id] = hits + self.cache.take(new)
        sequence.reserved = tokens
        sequence.stored = len(hits)
        sequence.context = len(hits) * self._block_tokens
        sequence.todo = tokens - sequence.context
        if not sequence.was_preempted and work.part is not Part.DECODE:
            sequence.cached = sequence.context
            self.queried_tokens += tokens
            self.hit_tokens += sequence.cached
        return True

    def grow(self, sequence: BatchSequence, tokens: int) -> None:
        sequence.reserved += tokens
        held = self._held[sequence.work.id]
        held += self.cache.take(self._blocks(sequence.reserved) - len(held))

    def note_computed(self, sequence: BatchSequence, context: int) -> None:
        held, hashes = self._held[sequence.work.id], sequence.work.blocks
        full = min(context // self._block_tokens, len(hashes))
        for at in range(sequence.stored, full):
            self.cache.store(held[at], hashes[at])
        sequence.stored = max(sequence.stored, full)

    def free(self, sequence: BatchSequence) -> None:
        self.cache.give_back(self._held.pop(sequence.work.id, []))
        sequence.reserved = sequence.stored = 0

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_tokens)

    def _growth_blocks(self, decodes: Sequence[BatchSequence]) -> int:
        return sum(1 for one in decodes if one.growth and one.reserved % self._block_tokens == 0)


def memory_of(limits: Limits) -> TokenMemory | BlockMemory:
    """The memory of an engine with `limits`."""
    return BlockMemory(limits) if limits.block_tokens else TokenMemory(limits)


def _growth(decodes: Sequence[BatchSequence]) -> int:
    return sum(one.growth for one in decodes)
