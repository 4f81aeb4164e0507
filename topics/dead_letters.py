"""What could not be understood.

Owns the meaning of these records. Knows nothing of JSON, topic names or what anyone does with them.
Times ending in `_ms` since the epoch are domain time (`topics.time_base`).
"""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What could not be understood, where it came from, and why. payload: base64, cut at 64 KiB."""

    topic: str
    partition: int
    offset: int
    reason: str
    payload: str
    reader: str

    def __post_init__(self) -> None:
        checks.name("topic", self.topic)
        checks.count("partition", self.partition)
        checks.count("offset", self.offset)
        checks.free_text(self, "reason")
        checks.machine_text("payload", self.payload, 90_000)
        checks.name("reader", self.reader)
