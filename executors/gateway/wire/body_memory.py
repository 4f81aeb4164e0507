"""Memory for request bodies: one bound for all clients together.

Owns the count of bytes. What is done about those who would exceed it is the server's business.
"""

from __future__ import annotations


class Budget:
    """Bytes of bodies held now, at most `limit_bytes`."""

    __slots__ = ("limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0

    def take(self, size: int) -> bool:
        """Whether `size` more bytes fit; they count from now on, also if they do not fit."""
        self.used_bytes += size
        return self.used_bytes <= self.limit_bytes

    def give_back(self, size: int) -> None:
        """`size` bytes are held no longer."""
        self.used_bytes -= size
