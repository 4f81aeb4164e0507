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
from hashlib import blake2b

from topics.records import Endpoint

MOST_BLOCKS = 65_536
"""Blocks of one model that a gateway remembers, about 25 MB. The least recently used are
forgotten first."""
MOST_ABOVE = 1.25
"""An instance gets requests by prefix up to this multiple of the mean load."""
_DECISIVE = 0.5
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
        loads = {endpoint: load(endpoint) for endpoint in usable}
        most = 1.0 + MOST_ABOVE * sum(loads.values()) / len(loads)
        allowed = [endpoint for endpoint in usable if loads[endpoint] <= most]
        depths = self._depths(blocks, usable)
        deepest = max(depths.values())
        found = max(depths[endpoint] for endpoint in allowed)
        if found > min(depths.values()) and found >= _DECISIVE * len(blocks):
            # A request in flight still needs half of its blocks, on average.
            waiting = 0.5 * self._new_blocks
            return max(allowed, key=lambda end: depths[end] - waiting * loads[end])
        key = blocks[min(deepest, len(blocks) - 1)]
        return max(allowed, key=lambda end: blake2b(f"{key}/{end.instance}".encode()).digest())

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

    def _depths(self, blocks: Sequence[int], usable: Sequence[Endpoint]) -> dict[Endpoint, int]:
        """For each of `usable`, the number of first blocks that it has."""
        depths = dict.fromkeys(usable, len(blocks))
        left = list(usable)
        for at, value in enumerate(blocks):
            holders = self._holders.get(value, ())
            for endpoint in left:
                if endpoint not in holders:
                    depths[endpoint] = at
            left = [endpoint for endpoint in left if endpoint in holders]
            if not left:
                break
        return depths
