"""Covered seconds and arrivals of one model over time, for any span in a few look-ups.

Owns cumulative sums per second and the 10 s blocks made from them. A record that comes late only
cuts the sums back to its second; the next query extends them again, so a tick costs what is new
since the last one. Knows nothing of who reported.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from autoscaler.demand.seconds import Second

BLOCK_S = 10
_LUMP_S = 600

Count = tuple[int, int]
"""(covered seconds, arrivals)."""

Blocks = tuple[Count, ...]
"""Counts of consecutive 10 s blocks that start at multiples of 10 s, oldest first."""


@dataclass(slots=True)
class Timeline:
    """covered[i], arrivals[i]: totals of the i seconds from `base_s` on."""

    horizon_s: int
    base_s: int = 0
    covered: array[int] = field(default_factory=lambda: array("q", [0]))
    arrivals: array[int] = field(default_factory=lambda: array("q", [0]))
    blocks: Blocks = ()
    first_block: int = 0
    changed_block: int = 0

    def changed(self, second: int) -> None:
        """What is known of `second` changed: sums from it on are worked out again when needed."""
        self.changed_block = min(self.changed_block, second // BLOCK_S)
        kept = second - self.base_s + 1
        if kept < 1:  # earlier than all so far
            self.base_s, kept = second, 1
            self.covered, self.arrivals = array("q", [0]), array("q", [0])
        del self.covered[kept:], self.arrivals[kept:]

    def spans(
        self, seconds: Mapping[int, Second], end_s: int, spans_s: Sequence[int]
    ) -> tuple[Count, ...]:
        """The counts of each span of `spans_s` before `end_s`."""
        self._extend(seconds, end_s)
        last = len(self.covered) - 1
        end = max(0, min(last, end_s - self.base_s))
        covered, arrivals = self.covered[end], self.arrivals[end]
        found = []
        for span_s in spans_s:
            start = max(0, min(last, end_s - span_s - self.base_s))
            found.append((covered - self.covered[start], arrivals - self.arrivals[start]))
        return tuple(found)

    def whole_blocks(self, seconds: Mapping[int, Second], now_s: int, window_s: int) -> Blocks:
        """The whole blocks of the `window_s` seconds before `now_s`; (0, 0) for unseen ones."""
        first, end = -(-(now_s - window_s) // BLOCK_S), now_s // BLOCK_S
        known_end = self.first_block + len(self.blocks)
        if first == self.first_block and end == known_end and self.changed_block >= end:
            return self.blocks
        self._extend(seconds, now_s)
        valid_end = min(known_end, self.changed_block)
        kept: Blocks = ()
        if self.first_block <= first < valid_end:
            kept = self.blocks[first - self.first_block : min(end, valid_end) - self.first_block]
        new = tuple(self._block(index) for index in range(first + len(kept), end))
        self.blocks, self.first_block, self.changed_block = (*kept, *new), first, max(first, end)
        return self.blocks

    def _block(self, index: int) -> Count:
        last = len(self.covered) - 1
        start = max(0, min(last, index * BLOCK_S - self.base_s))
        end = max(0, min(last, (index + 1) * BLOCK_S - self.base_s))
        return self.covered[end] - self.covered[start], self.arrivals[end] - self.arrivals[start]

    def _extend(self, seconds: Mapping[int, Second], end_s: int) -> None:
        """Bring the sums up to `end_s`, and forget what is beyond the horizon in lumps."""
        known_s = self.base_s + len(self.covered) - 1
        if end_s - known_s > self.horizon_s:
            # Nothing is known before the first second, so a new model costs what it has.
            known_s = max(end_s - self.horizon_s, min((*seconds, end_s)))
            self.base_s = known_s
            self.covered, self.arrivals = array("q", [0]), array("q", [0])
        covered, arrivals = self.covered[-1], self.arrivals[-1]
        for second in range(known_s, end_s):
            bucket = seconds.get(second)
            if bucket is not None:
                covered += 1
                arrivals += bucket.values[0]
            self.covered.append(covered)
            self.arrivals.append(arrivals)
        gone = len(self.covered) - self.horizon_s
        if gone > _LUMP_S:
            del self.covered[:gone], self.arrivals[:gone]
            self.base_s += gone
