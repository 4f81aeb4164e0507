"""The value that names a broker under test."""

from __future__ import annotations

from dataclasses import dataclass

from topics.table import Topic


@dataclass(frozen=True)
class Broker:
    kind: str
    bootstrap: str
    prefix: str

    def name(self, topic: Topic) -> str:
        return topic.wire_name(self.prefix)
