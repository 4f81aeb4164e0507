"""Knows which records of one producer were applied, so that a second copy changes nothing.

Sequence numbers of the last 65,536 are kept as bits of one integer: at most 8 KiB per producer
and model, whatever the number of models that share the producer's sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

REMEMBERED = 65_536


@dataclass(slots=True)
class Producer:
    """Sequences applied of one (gateway, boot): none below `floor` is new, others are bits.

    Bit i of `bits` says that sequence `floor` + i was applied. newest_ms: the latest event time
    of its records.
    """

    floor: int = 0
    bits: int = 0
    newest_ms: int = 0

    def is_new(self, sequence: int) -> bool:
        """Remember `sequence`; False if it was applied before, or is too old to tell."""
        if sequence < self.floor:
            return False
        if not self.bits and not self.floor:
            self.floor = max(0, sequence - REMEMBERED // 2)
        ahead = sequence - self.floor
        if ahead >= REMEMBERED:
            # Move on by a half more than needed: shifting costs 8 KiB, and is done rarely.
            step = ahead - REMEMBERED // 2
            self.bits >>= step
            self.floor += step
            ahead -= step
        bit = 1 << ahead
        if self.bits & bit:
            return False
        self.bits |= bit
        return True
