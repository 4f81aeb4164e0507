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
from collections.abc import Callable, Collection, Sequence
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
    """holders: instances that have the block. next: the block after it, `_BRANCHES` if prompts
    continue differently, 0 at the end of all prompts."""

    holders: list[Endpoint]
    next: int = 0


@dataclass(slots=True)
class PrefixIndex:
    """The blocks that the instances of one model were sent."""

    most_blocks: int = MOST_BLOCKS
    _known: OrderedDict[int, _Block] = field(default_factory=OrderedDict)
    _sent_to: set[Endpoint] = field(default_factory=set)
    _new_blocks: float = 1.0  # running mean of the blocks that a request adds to its instance

    def choose(
        self,
        blocks: Sequence[int],
        usable: Sequence[Endpoint],
        load: Callable[[Endpoint], float],
        agree: bool = False,
    ) -> Endpoint:
        """The instance of `usable`, which is not empty, for a prompt with the chained hashes
        `blocks`, which is not empty either. agree: other gateways share the instances."""
        loads = [load(endpoint) for endpoint in usable]
        mean = sum(loads) / len(loads)
        most = mean + _SIGMAS * math.sqrt(mean)
        known, common = self._depths(blocks)
        depths = [known.get(endpoint, 0) for endpoint in usable] if known else [0] * len(usable)
        best = [at for at, held in enumerate(loads) if held <= most]
        found = max(depths[at] for at in best)
        if found > min(depths) and (found > common or found >= _DECISIVE * len(blocks)):
            each = _STILL_NEEDED * self._new_blocks
            best = _highest(
                best, [depth - each * held for depth, held in zip(depths, loads, strict=True)]
            )
        elif not agree:
            best = _highest(best, [-held for held in loads])
        if len(best) == 1:
            return usable[best[0]]
        key = blocks[min(common, len(blocks) - 1)]
        return usable[max(best, key=lambda at: _rank(key, usable[at].instance))]

    def note_sent(self, blocks: Sequence[int], endpoint: Endpoint) -> None:
        """`endpoint` gets a prompt with `blocks`, and caches them."""
        self._sent_to.add(endpoint)
        added = after = 0
        for value in reversed(blocks):  # so that the end of a prompt is forgotten first
            known = self._known.get(value)
            if known is None:
                self._known[value] = _Block([endpoint], after)
                added += 1
            else:
                self._known.move_to_end(value)
                if endpoint not in known.holders:
                    known.holders.append(endpoint)
                    added += 1
                if after and known.next != after:
                    known.next = _BRANCHES if known.next else after
            after = value
        self._new_blocks += _LEARNING_RATE * (added - self._new_blocks)
        while len(self._known) > self.most_blocks:
            self._known.popitem(last=False)

    def keep(self, live: Collection[Endpoint]) -> None:
        """Forget the blocks of instances outside `live`."""
        if self._sent_to <= set(live):
            return
        self._sent_to &= set(live)
        for value, known in list(self._known.items()):
            known.holders = [endpoint for endpoint in known.holders if endpoint in live]
            if not known.holders:
                del self._known[value]

    def _depths(self, blocks: Sequence[int]) -> tuple[dict[Endpoint, int], int]:
        """For each instance with the first block, the number of first blocks that it has. And the
        number of first blocks up to the last one that other prompts continue differently."""
        depths: dict[Endpoint, int] = {}
        common, left = 0, list[Endpoint]()
        for at, value in enumerate(blocks, 1):
            known = self._known.get(value)
            if known is None:
                break
            holders = known.holders
            left = holders if at == 1 else [one for one in left if one in holders]
            for endpoint in left:
                depths[endpoint] = at
            if known.next and (at == len(blocks) or known.next != blocks[at]):
                common = at
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
