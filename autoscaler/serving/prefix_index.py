"""Which instances have which beginnings of prompts in their prefix caches, as far as one gateway
knows: it notes the blocks of the requests that it sent.

A prompt of which an instance has half goes to the instance with the longest beginning, unless its
load outweighs that. Any other prompt is new except for a common beginning, such as a system prompt.
It goes to its home, by rendezvous hashing over its first new block. So several gateways agree
without messages, and few prompts change their home if instances come and go. Both choices leave out
instances far above the mean load (bounded loads: Mirrokni et al., arXiv 1608.01350). Sources:
NVIDIA Dynamo's KV router (prompt blocks to compute plus load), SGLang's router (half of a prompt).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b

from topics.records import Endpoint

MOST_BLOCKS = 65_536
"""Blocks of one model that a gateway remembers, about 15 MB. The least recently used are
forgotten first."""
MOST_ABOVE = 1.25
"""An instance gets requests by prefix up to this multiple of the mean load."""
_DECISIVE = 0.5
_MASK = 2**64 - 1
_LEARNING_RATE = 0.02


@dataclass(slots=True)
class PrefixIndex:
    """The blocks that the instances of one model were sent."""

    most_blocks: int = MOST_BLOCKS
    _holders: OrderedDict[int, list[Endpoint]] = field(default_factory=OrderedDict)
    _known: set[Endpoint] = field(default_factory=set)
    _new_blocks: float = 1.0  # running mean of the blocks that a request adds to its instance

    def choose(
        self,
        blocks: Sequence[int],
        usable: Sequence[Endpoint],
        load: Callable[[Endpoint], float],
    ) -> Endpoint:
        """The instance of `usable`, which is not empty, for a prompt with the chained hashes
        `blocks`, which is not empty either."""
        loads = [load(endpoint) for endpoint in usable]
        most = 1.0 + MOST_ABOVE * sum(loads) / len(loads)
        known = self._depths(blocks)
        depths = [known.get(endpoint, 0) for endpoint in usable] if known else [0] * len(usable)
        allowed = [at for at, held in enumerate(loads) if held <= most]
        deepest = max(depths)
        found = max(depths[at] for at in allowed)
        if found > min(depths) and found >= _DECISIVE * len(blocks):
            # A request in flight still needs half of its blocks, on average.
            waiting = 0.5 * self._new_blocks
            return usable[max(allowed, key=lambda at: depths[at] - waiting * loads[at])]
        key = blocks[min(deepest, len(blocks) - 1)]
        return usable[max(allowed, key=lambda at: _rank(key, usable[at].instance))]

    def note_sent(self, blocks: Sequence[int], endpoint: Endpoint) -> None:
        """`endpoint` gets a prompt with `blocks`, and caches them."""
        self._known.add(endpoint)
        added = 0
        for value in reversed(blocks):  # so that the end of a prompt is forgotten first
            holders = self._holders.get(value)
            if holders is None:
                self._holders[value] = [endpoint]
                added += 1
                continue
            self._holders.move_to_end(value)
            if endpoint not in holders:
                holders.append(endpoint)
                added += 1
        self._new_blocks += _LEARNING_RATE * (added - self._new_blocks)
        while len(self._holders) > self.most_blocks:
            self._holders.popitem(last=False)

    def keep(self, live: Collection[Endpoint]) -> None:
        """Forget the blocks of instances outside `live`."""
        if self._known <= set(live):
            return
        self._known &= set(live)
        for value, holders in list(self._holders.items()):
            kept = [endpoint for endpoint in holders if endpoint in live]
            if not kept:
                del self._holders[value]
            elif len(kept) < len(holders):
                self._holders[value] = kept

    def _depths(self, blocks: Sequence[int]) -> dict[Endpoint, int]:
        """For each instance with the first block, the number of first blocks that it has."""
        depths: dict[Endpoint, int] = {}
        left: list[Endpoint] | None = None
        for at, value in enumerate(blocks, 1):
            holders = self._holders.get(value, [])
            left = holders if left is None else [one for one in left if one in holders]
            if not left:
                break
            for endpoint in left:
                depths[endpoint] = at
        return depths


def _rank(key: int, instance: str) -> int:
    """A hash of both, equal in all processes (finaliser of SplitMix64)."""
    mixed = (key ^ _number_of(instance)) * 0x9E3779B97F4A7C15 & _MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & _MASK
    return mixed ^ mixed >> 31


@lru_cache(maxsize=4096)
def _number_of(instance: str) -> int:
    return int.from_bytes(blake2b(instance.encode(), digest_size=8).digest())
