"""Lag of a consumer behind the ends of its topics: in records, and in time.

A moment counts as reached once the consumer's position has passed the ends that the partitions had
at that moment. The lag is the time since the last such moment. It uses only the consumer's own
clock, because clocks of producers and brokers may be wrong.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from aiokafka import AIOKafkaConsumer

from topics.topic_table import short_name

_EVERY_S = 0.25
# Maximum of stored end offsets per partition, about four minutes; above it, half are dropped.
_MOST_ENDS = 1000
BEHIND_S, CAUGHT_UP_S = 3.0, 2.0
"""Real seconds: a reader becomes late above the first value, and is no longer late at the second
value or below.
"""


class ConsumerLag:
    """Measures by how many records and seconds consumers lag behind the broker. records: unread
    records in the broker by short topic name, as of the last update. now_s, wall_s: clocks,
    replaced in tests; aiokafka stamps answers of the broker with the wall clock."""

    def __init__(
        self,
        prefix: str,
        now_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._prefix = prefix
        self._now_s = now_s
        self._wall_s = wall_s
        self._due_s = 0.0
        self._ends: dict[Any, deque[tuple[float, int]]] = {}
        self._read_until_s: dict[Any, float] = {}
        self._behind: set[str] = set()
        self.records: Mapping[str, int] = {}

    async def update(self, consumer: AIOKafkaConsumer) -> None:
        """Call after each read. The lag is updated at most four times a second.

        Sends no request, because the end offsets arrived with the last fetch.
        """
        now_s = self._now_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + _EVERY_S
        found: Counter[str] = Counter()
        parts = consumer.assignment()
        for part in parts:
            until_s = self._read_until_s.setdefault(part, now_s)
            end = consumer.highwater(part)
            if end is None:
                continue
            # The position includes transaction markers, which a count of records would miss.
            position = await consumer.position(part)
            found[short_name(part.topic, self._prefix)] += max(0, end - position)
            told_ms = consumer.last_poll_timestamp(part)
            told_s = now_s if told_ms is None else now_s - max(0.0, self._wall_s() - told_ms / 1e3)
            ends = self._ends.setdefault(part, deque())
            if told_s > (ends[-1][0] if ends else until_s):
                ends.append((told_s, end))
            while ends and position >= ends[0][1]:
                self._read_until_s[part], _ = ends.popleft()
            if len(ends) > _MOST_ENDS:  # Coarser ends can only overstate the lag.
                self._ends[part] = deque(list(ends)[1::2])
        self._forget(parts)
        self.records = found

    def late_s(self) -> dict[str, float]:
        """Lag in real seconds of each topic that is read late.

        The values grow while the broker does not answer.
        """
        now_s = self._now_s()
        ages: dict[str, float] = {}
        for part, until_s in self._read_until_s.items():
            name = short_name(part.topic, self._prefix)
            ages[name] = max(ages.get(name, 0.0), now_s - until_s)
        for name, age_s in ages.items():
            if age_s > BEHIND_S:
                self._behind.add(name)
            elif age_s <= CAUGHT_UP_S:
                self._behind.discard(name)
        return {name: ages[name] for name in ages if name in self._behind}

    def _forget(self, assigned: Iterable[Any]) -> None:
        for part in self._read_until_s.keys() - set(assigned):
            del self._read_until_s[part]
            self._ends.pop(part, None)
