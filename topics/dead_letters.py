"""Dead letters: invalid records, kept for inspection."""

from __future__ import annotations

from dataclasses import dataclass

from topics import checks


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that could not be decoded, with its position and the reason. payload: The record in
    base64, truncated at 64 KiB. reader: The process that refused the record.
    """

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
