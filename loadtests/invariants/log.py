"""A broker in virtual time: topics as lists of bytes, with network faults.

Offsets have gaps: compaction removes records, and a transaction ends with a marker. Timestamps are
set by the broker's clock, which may step. Compaction and the expiry of tombstones happen when a
fault asks for them. Transactions work as in Kafka (all or none, fenced by epoch). The log can also
run without transactions, like the embedded broker: then a batch may be written in part.
"""

from __future__ import annotations

import random
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from topics.topic_table import TABLE, Cleanup, topic

T0 = 1_700_000_000_000
"""Domain ms at the beginning of a simulation."""
COMPACTED = tuple(each.name for each in TABLE if each.cleanup is Cleanup.COMPACT)
"""Short names of the compacted topics."""
Place = tuple[str, int]
"""A partition: short topic name and number."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a partition, with the attributes of a record of aiokafka. at_s: time at which
    it became visible. timestamp: append time in ms on the broker's clock.
    """

    partition: int
    offset: int
    at_s: float
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(slots=True)
class Part:
    """One partition. end: offset of the next record."""

    entries: list[Entry] = field(default_factory=list)
    end: int = 0

    def index(self, offset: int) -> int:
        """Place in `entries` of the first record at `offset` or later."""
        if self.end == len(self.entries):
            return min(offset, self.end)
        return bisect_left(self.entries, offset, key=lambda entry: entry.offset)

    def compact(self, before: int, expire: bool) -> None:
        """Compact the records before offset `before`. expire: tombstones are older than a day, so
        they disappear too."""
        head = [entry for entry in self.entries if entry.offset < before]
        last = {entry.key: entry.offset for entry in head}
        self.entries = [
            entry
            for entry in self.entries
            if entry.offset >= before
            or (last[entry.key] == entry.offset and not (expire and entry.value is None))
        ]


@dataclass(slots=True)
class Log:
    """All topics. skew_ms: lead of the broker's clock. away: whether the broker is unavailable.
    misplaced: whether producers choose another partition than the one of the key. absent: topics
    that were deleted and not yet created again. deleted_s: time of the last tombstone of each key.
    """

    now_s: Callable[[], float]
    transactional: bool
    skew_ms: int = 0
    away: bool = False
    misplaced: bool = False
    epoch: int = 0
    parts: dict[Place, Part] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    deleted_s: dict[tuple[str, bytes | None], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for each in TABLE:
            self._empty(each.name)

    def append(
        self,
        name: str,
        key: bytes | None,
        value: bytes | None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Entry:
        """Write one record. The caller has checked that the broker is available and has the
        topic."""
        count = topic(name).partitions
        number = (zlib.crc32(key or b"") + self.misplaced) % count
        part = self.parts[name, number]
        made = Entry(
            number, part.end, self.now_s(), self.clock_ms(), key, value, tuple(headers)
        )  # fmt: skip
        part.entries.append(made)
        part.end += 1
        if value is None:
            self.deleted_s[name, key] = made.at_s
        return made

    def clock_ms(self) -> int:
        """The broker's clock."""
        return T0 + int(self.now_s() * 1000) + self.skew_ms

    def end_transaction(self, places: Iterable[Place]) -> None:
        """Write the marker that ends a transaction to each of its partitions."""
        for place in places:
            self.parts[place].end += 1

    def compact(self, rng: random.Random, expire: bool) -> None:
        """Compact every compacted topic up to a random offset of each partition."""
        for (name, _), part in self.parts.items():
            if name in COMPACTED:
                part.compact(rng.randint(0, part.end), expire)

    def delete(self, name: str) -> None:
        """Delete the topic. It is absent until `create`."""
        self.absent.add(name)
        self._empty(name)

    def create(self) -> tuple[str, ...]:
        """Create the absent topics, empty; returns their names."""
        made = tuple(sorted(self.absent))
        self.absent.clear()
        return made

    def last(self, name: str) -> dict[bytes | None, Entry]:
        """The last record of each key of the topic, over all partitions. If a key is in several
        partitions, the one that was written last."""
        found: dict[bytes | None, Entry] = {}
        for (of, _), part in self.parts.items():
            for entry in part.entries if of == name else ():
                known = found.get(entry.key)
                if known is None or entry.at_s >= known.at_s:
                    found[entry.key] = entry
        return found

    def _empty(self, name: str) -> None:
        for number in range(topic(name).partitions):
            self.parts[name, number] = Part()


@dataclass(slots=True)
class Link:
    """Connection of one process to the broker. cut: no connection. slow_s: added to every delay.
    again: share of reads that return up to 100 records once more. copies: share of writes that are
    stored twice. lost: share of writes that never arrive. unheard: share of writes with a lost
    acknowledgement. fuse: number of records of the leader's producer after which the process is
    killed; -1 for none.
    """

    rng: random.Random
    cut: bool = False
    slow_s: float = 0.0
    again: float = 0.0
    copies: float = 0.0
    lost: float = 0.0
    unheard: float = 0.0
    fuse: int = -1

    def delay_s(self) -> float:
        """The present delay of one record in one direction."""
        return 0.002 + 0.03 * self.rng.random() + self.slow_s * self.rng.random()

    def burn(self) -> bool:
        """Count one record of the leader's producer. False if the process is dead before it."""
        if self.fuse == 0:
            self.cut = True
        self.fuse -= self.fuse > 0
        return not self.cut


class Positions:
    """Positions of one reader, and the records that have arrived for it. Records of a partition
    come in order, each partition with its own delay."""

    def __init__(self, log: Log, link: Link, places: Iterable[Place]) -> None:
        self._log = log
        self._link = link
        self.next = dict.fromkeys(places, 0)
        self._lag_s = {place: link.delay_s() for place in self.next}

    def reached(self, place: Place) -> bool:
        """Whether the position is the end of the partition."""
        return self.next[place] >= self._log.parts[place].end

    def take(self, place: Place, now_s: float, most: int) -> list[Entry]:
        """At most `most` records of a partition that have arrived by `now_s`."""
        if place[0] in self._log.absent:
            return []
        at, part = self.next[place], self._log.parts[place]
        if at > part.end:  # out of range: the topic was created again, so read it from its start
            at = self.next[place] = 0
        # Claims are counted by their offsets, so no claim may be read twice.
        again = self._link.again if place[0] != "leadership" else 0.0
        if again and self._link.rng.random() < again:
            at = max(0, at - self._link.rng.randint(1, 100))
        if at >= part.end:
            return []
        self._lag_s[place] = 0.5 * self._lag_s[place] + 0.5 * self._link.delay_s()
        seen_s = now_s - self._lag_s[place]
        first = part.index(at)
        last = first
        while (
            last < len(part.entries) and last - first < most and part.entries[last].at_s <= seen_s
        ):
            last += 1
        # After the last record there are only markers and compacted records.
        done = part.end if last == len(part.entries) else part.entries[last].offset
        self.next[place] = max(self.next[place], done)
        return part.entries[first:last]


class Reader:
    """Reader of some topics in an executor or a gateway."""

    def __init__(self, log: Log, link: Link, names: Iterable[str]) -> None:
        self._log = log
        self._link = link
        chosen = tuple(names)
        self._at = Positions(log, link, [place for place in log.parts if place[0] in chosen])

    def poll(self, now_s: float) -> Iterator[tuple[str, Entry]]:
        """Return (topic, record) of the records that have arrived, in the order of each
        partition."""
        if self._link.cut or self._log.away:
            return
        for place in self._at.next:
            for entry in self._at.take(place, now_s, 10**9):
                yield place[0], entry
