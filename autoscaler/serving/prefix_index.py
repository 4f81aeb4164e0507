"""Which instances have which beginnings of prompts in their prefix caches, as far as one gateway
knows: it notes the blocks of the requests that it sent.

If an instance has half of a prompt, or a beginning that no other prompt continues differently, the
prompt goes to the instance with the least work: the blocks of the prompt that it must compute, plus
those that its requests in flight still need. Any other prompt has at most a common beginning, such
as a system prompt, and goes to the least loaded instance. Both choices leave out instances whose
load is above the mean beyond chance (bounded loads: Mirrokni et al., arXiv 1608.01350).

Gateways that share instances do not know each other's prompts. There, a new prompt goes to its
home, by rendezvous hashing over its first block after the common beginning, and so do the next
turns of its conversation at other gateways. Sources: NVIDIA Dynamo's KV router (prompt blocks to
compute plus load), SGLang's router (half of a prompt).
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from topics.records import Endpoint

MOST_BLOCKS = 65_536
"""Blocks of one model that a gateway remembers, about 15 MB. The least recently used are
forgotten first."""
_SIGMAS = 2.0
"""Standard deviations above the mean load up to which an instance gets requests by prefix, as if
requests were sent at random."""
_STILL_NEEDED = 0.25
"""Share of its new blocks that a request in flight still needs, on average: about half of the
requests have their first token, and the others are half done."""
_DECISIVE = 0.5
_BRANCHES = -1
_MASK = 2**64 - 1
_LEARNING_RATE = 0.02


@dataclass(slots=True)
class _Block:
    """holders: bits of the instances that have the block. next: the block after it, `_BRANCHES` if
    prompts continue differently, 0 at the end of all prompts."""

    holders: int
    next: int = 0


@dataclass(slots=True)
class PrefixIndex:
    """The blocks that the instances of one model were sent. Each instance has one bit."""

    most_blocks: int = MOST_BLOCKS
    _known: OrderedDict[int, _Block] = field(default_factory=OrderedDict)
    _bits: dict[Endpoint, int] = field(default_factory=dict)
    _new_blocks: float = 1.0  # running mean of the blocks that a request adds to its instance
    _turn: int = 0

    def choose(
        self,
        blocks: Sequence[int],
        usable: Sequence[Endpoint],
        loads: Sequence[float],
        agree: bool = False,
    ) -> int:
        """The index in `usable`, which is not empty, of the instance for a prompt with the chained
        hashes `blocks`, which is not empty either. loads: of each usable instance. agree: other
        gateways share the instances."""
        mean = sum(loads) / len(loads)
        most = mean + _SIGMAS * math.sqrt(mean)
        best = [at for at, held in enumerate(loads) if held <= most]
        depths, common = self._depths(blocks, usable)
        found = max([depths[at] for at in best]) if depths else 0
        if depths and found > min(depths) and (found > common or found >= _DECISIVE * len(blocks)):
            each = _STILL_NEEDED * self._new_blocks
            best = _highest(
                best, [depth - each * held for depth, held in zip(depths, loads, strict=True)]
            )
        elif not agree:
            best = _highest(best, [-held for held in loads])
        if len(best) == 1:
            return best[0]
        if agree:
            key = blocks[min(common, len(blocks) - 1)]
            return max(best, key=lambda at: _rank(key, usable[at].instance))
        self._turn = next((at for at in best if at > self._turn), best[0])
        return self._turn

    def note_sent(self, blocks: Sequence[int], endpoint: Endpoint) -> None:
        """`endpoint` gets a prompt with `blocks`, and caches them."""
        known, bit = self._known, self._bits.get(endpoint) or self._new_bit(endpoint)
        added = after = 0
        for value in reversed(blocks):  # so that the end of a prompt is forgotten first
            block = known.get(value)
            if block is None:
                known[value] = _Block(bit, after)
                added += 1
            else:
                known.move_to_end(value)
                if not block.holders & bit:
                    block.holders |= bit
                    added += 1
                if after and block.next != after:
                    block.next = _BRANCHES if block.next else after
            after = value
        self._new_blocks += _LEARNING_RATE * (added - self._new_blocks)
        while len(known) > self.most_blocks:
            known.popitem(last=False)

    def keep(self, live: Collection[Endpoint]) -> None:
        """Forget the blocks of instances outside `live`."""
        gone = 0
        for endpoint in self._bits.keys() - live:
            gone |= self._bits.pop(endpoint)
        if not gone:
            return
        for value, block in list(self._known.items()):
            block.holders &= ~gone
            if not block.holders:
                del self._known[value]

    def _new_bit(self, endpoint: Endpoint) -> int:
        """The lowest bit of no instance, for `endpoint`."""
        used = sum(self._bits.values())
        bit = self._bits[endpoint] = ~used & (used + 1)
        return bit

    def _depths(self, blocks: Sequence[int], usable: Sequence[Endpoint]) -> tuple[list[int], int]:
        """The number of first blocks that each of `usable` has, empty if none has the first block.
        And the number of first blocks up to the last one that other prompts continue
        differently."""
        known, left, common, count = self._known, -1, 0, 0
        depth_of: dict[int, int] = {}  # by bits
        for value, following in zip(blocks, (*blocks[1:], 0), strict=True):
            block = known.get(value)
            if block is None:
                break
            have = left & block.holders
            if have != left:
                depth_of[left ^ have] = count
                left = have
            count += 1
            if block.next and block.next != following:
                common = count
        if not count:
            return [], 0
        depth_of[left] = count
        bits = [self._bits.get(endpoint, 0) for endpoint in usable]
        depths = [0] * len(bits)
        for those, depth in depth_of.items():
            if depth:
                for at, bit in enumerate(bits):
                    if those & bit:
                        depths[at] = depth
        return depths, common


def _highest(among: Sequence[int], values: Sequence[float]) -> list[int]:
    highest = max(values[at] for at in among)
    return [at for at in among if values[at] == highest]


def _rank(key: int, instance: str) -> int:
    """A hash of both, equal in all processes (finaliser of SplitMix64)."""
    mixed = (key ^ _number_of(instance)) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


@lru_cache(maxsize=4096)
def _number_of(instance: str) -> int:
    return int.from_bytes(blake2b(instance.encode(), digest_size=8).digest())
