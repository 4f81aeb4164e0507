"""A body in blocks, because to put a large one together holds up an event loop for milliseconds.

Owns how blocks are made of what arrives: many small parts must not cost more than a few large ones.
"""

from __future__ import annotations

Blocks = tuple[bytes, ...]
"""What they say when joined is the body."""

_BLOCK = 64 * 1024


class Gathering:
    """A body as it arrives. size: bytes so far."""

    __slots__ = ("_blocks", "_tail", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._tail: bytes | bytearray = b""
        self.size = 0

    def add(self, part: bytes) -> None:
        """The next part."""
        self.size += len(part)
        if not self._tail:
            self._tail = part
            return
        if len(self._tail) + len(part) > _BLOCK:
            self._blocks.append(bytes(self._tail))
            self._tail = part
        elif isinstance(self._tail, bytes):
            self._tail = bytearray(self._tail) + part
        else:
            self._tail += part

    def take(self) -> Blocks:
        """All of it; what comes next belongs to another body."""
        blocks = (*self._blocks, bytes(self._tail)) if self._tail else tuple(self._blocks)
        self._blocks, self._tail, self.size = [], b"", 0
        return blocks
