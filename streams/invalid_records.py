"""Records that could not be understood, and what is written about them.

Owns the form of a dead letter. One place of a topic gives one dead letter, however often it is
read, as long as `Latest.dead` remembers it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

from topics.records import DeadLetter

_MOST_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Poison:
    """A record at (topic, partition, offset), short topic name, that was refused, and why."""

    topic: str
    partition: int
    offset: int
    value: bytes
    why: str

    @property
    def place(self) -> tuple[str, int, int]:
        """What names it, now and later."""
        return self.topic, self.partition, self.offset

    def letter(self, reader: str) -> DeadLetter:
        """What is written to dead-letters; the payload is cut at 64 KiB."""
        payload = base64.b64encode(self.value[:_MOST_BYTES]).decode()
        return DeadLetter(self.topic, self.partition, self.offset, self.why[:2000], payload, reader)
