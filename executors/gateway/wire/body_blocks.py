"""Collect an arriving request body in blocks.

Joining a body of several megabytes would block the event loop for milliseconds, so it is kept in
blocks of about 64 KiB. Small parts are merged, so that many small parts cost no more than a few
large ones.
"""

from __future__ import annotations

Blocks = tuple[bytes, ...]
"""A body in order; the blocks joined are the whole body."""

_BLOCK_BYTES = 64 * 1024


class BodyBuffer:
    """Collects the parts of one body. size: bytes collected so far."""

    __slots__ = ("_blocks", "_tail", "size")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._tail: bytes | bytearray = b""
        self.size = 0

    def add(self, part: bytes) -> None:
        """Append the next part."""
        self.size += len(part)
        if not self._tail:
            self._tail = part
            return
        if len(self._tail) + len(part) > _BLOCK_BYTES:
            self._blocks.append(bytes(self._tail))
            self._tail = part
        elif isinstance(self._tail, bytes):
            self._tail = bytearray(self._tail) + part
        else:
            self._tail += part

    def take(self) -> Blocks:
        """Return the whole body and start an empty one."""
        blocks = (*self._blocks, bytes(self._tail)) if self._tail else tuple(self._blocks)
        self._blocks, self._tail, self.size = [], b"", 0
        return blocks
