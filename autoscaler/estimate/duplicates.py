"""Knows which records of one producer were applied, so that a second copy changes nothing.

The last 32,768 sequence numbers at least are kept as bits in two pages: at most 8 KiB per producer
and model, whatever the number of models that share the producer's sequence.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PAGE = 32_768


def _page() -> bytearray:
    return bytearray(PAGE // 8)


@dataclass(slots=True)
class Producer:
    """Sequences applied of one (gateway, boot), which is boot `number`. What is older than the page
    before the newest one is a copy."""

    number: int = 0
    page: int = -1
    newest: bytearray = field(default_factory=bytearray)
    before: bytearray = field(default_factory=bytearray)

    def is_new(self, sequence: int) -> bool:
        """Remember `sequence`; False if it was applied before, or is too old to tell."""
        page = sequence // PAGE
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
        at, bit = sequence % PAGE >> 3, 1 << (sequence & 7)
        if bits[at] & bit:
            return False
        bits[at] |= bit
        return True
