"""How far a consumer is behind the ends of what it reads."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer

from topics.table import short_name

_EVERY_S = 1.0


class Behind:
    """records: that the broker has and the consumer has not read, by short topic name, as of the
    last `look` that was due."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._due_s = 0.0
        self.records: Mapping[str, int] = {}

    async def look(self, consumer: AIOKafkaConsumer) -> None:
        """Called after each read; looks once a second. Asks nobody: the ends came with what was
        fetched last."""
        if time.monotonic() < self._due_s:
            return
        self._due_s = time.monotonic() + _EVERY_S
        found: Counter[str] = Counter()
        for part in consumer.assignment():
            end = consumer.highwater(part)
            if end is not None:
                # A position passes what transactions leave behind; what was counted would not.
                left = max(0, end - await consumer.position(part))
                found[short_name(part.topic, self._prefix)] += left
        self.records = found
