"""Count the memory of request bodies against one limit for all clients together.

If the limit is exceeded, the server decides which requests it refuses.
"""

from __future__ import annotations


class BodyMemory:
    """Bytes of request bodies in memory, and their limit."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def reserve(self, size: int) -> bool:
        """Count `size` more bytes and return whether they fit. Even if they do not fit, they are
        counted, so the caller must `release` them in both cases."""
        self.used_bytes += size
        return self.used_bytes <= self.limit_bytes

    def release(self, size: int) -> None:
        """Stop counting `size` bytes that were reserved."""
        self.used_bytes -= size
