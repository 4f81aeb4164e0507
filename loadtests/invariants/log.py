"""A broker in virtual time: topics as lists of bytes, with network faults.

Readers read a partition in order, each with its own delay. A faulty reader reads some records
again, or none for a while. Faults of producers are lost records, lost acknowledgements, copies and
delays. Transactions work as in Kafka (all or none, fenced by epoch). The log can also run without
transactions, like the embedded broker: then a batch may be written in part.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from topics.topic_table import TABLE, topic

T0 = 1_700_000_000_000
"""Domain ms at the beginning of a simulation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a partition. at_s: time at which it became visible. append_ms: append time on
    the broker's clock.
    """

    offset: int
    at_s: float
    append_ms: int
    key: str
    value: bytes | None


@dataclass(slots=True)
class Log:
    """All topics. skew_ms: lead of the broker's clock. away: whether the broker is unavailable."""

    now_s: Callable[[], float]
    transactional: bool
    skew_ms: int = 0
    away: bool = False
    epoch: int = 0
    parts: dict[tuple[str, int], list[Entry]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in TABLE:
            for number in range(each.partitions):
                self.parts[each.name, number] = []

    def append(self, name: str, key: str, value: bytes | None) -> Entry:
        """Write one record. The caller has checked that the broker is available."""
        number = zlib.crc32(key.encode()) % topic(name).partitions
        part = self.parts[name, number]
        now_s = self.now_s()
        made = Entry(len(part), now_s, T0 + int(now_s * 1000) + self.skew_ms, key, value)
        part.append(made)
        return made

    def delete(self, name: str) -> None:
        """Delete the topic and create it again. It is then empty, and offsets begin at 0."""
        for number in range(topic(name).partitions):
            self.parts[name, number] = []


@dataclass(slots=True)
class Link:
    """Connection of one process to the broker. cut: no connection. slow_s: added to every delay.
    again: share of reads that return up to 100 records once more. copies: share of writes that are
    stored twice. lost: share of writes that never arrive. unheard: share of writes with a lost
    acknowledgement.
    """

    rng: random.Random
    cut: bool = False
    slow_s: float = 0.0
    again: float = 0.0
    copies: float = 0.0
    lost: float = 0.0
    unheard: float = 0.0

    def delay_s(self) -> float:
        """The present delay of one record in one direction."""
        return 0.002 + 0.03 * self.rng.random() + self.slow_s * self.rng.random()


class Reader:
    """Reader of some topics in one process. only: decides whether a key is read."""

    def __init__(
        self,
        log: Log,
        link: Link,
        names: Iterable[str],
        only: Callable[[str], bool] = lambda _key: True,
    ) -> None:
        self._log = log
        self._link = link
        self._only = only
        chosen = tuple(names)
        self._next = {place: 0 for place in log.parts if place[0] in chosen}
        self._lag_s = {place: link.delay_s() for place in self._next}

    def at_end(self) -> bool:
        """Whether every present record was read."""
        return all(at >= len(self._log.parts[place]) for place, at in self._next.items())

    def skip_to(self, since_s: float) -> None:
        """Skip the records before `since_s`."""
        for place in self._next:
            part = self._log.parts[place]
            self._next[place] = next((e.offset for e in part if e.at_s >= since_s), len(part))

    def poll(self, now_s: float) -> Iterator[tuple[str, Entry]]:
        """Return (topic, record) of the records that have arrived, in the order of each
        partition."""
        if self._link.cut or self._log.away:
            return
        for place, at in self._next.items():
            part = self._log.parts[place]
            if at > len(part):  # out of range: the topic was recreated, so read it from its start
                at = self._next[place] = 0
            # Claims are counted by their offsets, so no claim may be read twice.
            repeats = self._link.again and place[0] != "leadership"
            if repeats and self._link.rng.random() < self._link.again:
                at = max(0, at - self._link.rng.randint(1, 100))
            if at >= len(part):
                continue
            self._lag_s[place] = 0.5 * self._lag_s[place] + 0.5 * self._link.delay_s()
            seen_s = now_s - self._lag_s[place]
            while at < len(part) and part[at].at_s <= seen_s:
                entry = part[at]
                at += 1
                if self._only(entry.key):
                    yield place[0], entry
            self._next[place] = max(self._next[place], at)
