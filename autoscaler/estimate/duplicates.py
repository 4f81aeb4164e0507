"""Deduplication of telemetry records by sequence number.

For each producer, at least the last 32,768 sequence numbers are kept as bits in two pages: at most
8 KiB per producer and model, even if many models share the producer's sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE_SEQUENCES = 32_768
"""Sequence numbers of one page of the bit set, 4 KiB of memory."""


def _page() -> bytearray:
    return bytearray(PAGE_SEQUENCES // 8)


@dataclass(slots=True)
class AppliedSequences:
    """Applied sequence numbers of one (gateway, boot). boot_number: index of the boot. Sequence
    numbers older than the two newest pages count as applied."""

    boot_number: int = 0
    page: int = -1
    newest: bytearray = field(default_factory=bytearray)
    before: bytearray = field(default_factory=bytearray)

    def is_new(self, sequence: int) -> bool:
        """Mark `sequence` as applied. False if the number was applied before, or is too old to
        tell."""
        page = sequence // PAGE_SEQUENCES
        bits = self.newest
        if page != self.page:
            if page > self.page:
                self.before = bits if page == self.page + 1 and bits else _page()
                self.newest = bits = _page()
                self.page = page
            elif page == self.page - 1:
                bits = self.before
            else:
                return False
        at, bit = sequence % PAGE_SEQUENCES >> 3, 1 << (sequence & 7)
        if bits[at] & bit:
            return False
        bits[at] |= bit
        return True
