"""Kafka clients in virtual time, for the real parts of the controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from types import SimpleNamespace
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError, UnknownTopicOrPartitionError

from loadtests.invariants.log import Entry, Link, Log, Place, Positions
from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import EnsuredTopics
from streams.controller.leader_producer import Fenced
from topics.topic_table import PREFIX, short_name

_POLL_S = 0.1
_METADATA_S = 10.0
Headers = Iterable[tuple[str, bytes]]


class SimProducer:
    """A plain producer, as `LeadershipClient` uses it."""

    def __init__(self, log: Log, link: Link) -> None:
        self._log = log
        self._link = link

    async def send_and_wait(self, name: str, value: bytes, key: bytes | None) -> Any:
        """Write one record and wait for the broker's acknowledgement."""
        return await written(self._log, self._link, name, value, key)


async def written(
    log: Log, link: Link, name: str, value: bytes | None, key: bytes | None, headers: Headers = ()
) -> Any:
    """Write a record. Returns it as the broker stored it.

    Raises KafkaConnectionError without an acknowledgement; the broker may have stored the record
    nevertheless.
    """
    await asyncio.sleep(link.delay_s())
    await _topic_exists(log, name)
    if link.cut or log.away:
        await asyncio.sleep(1.0)
        raise KafkaConnectionError("no broker")
    if link.rng.random() < link.lost:
        raise KafkaConnectionError("lost on the way")
    made = _append(log, link, name, value, key, headers)
    await asyncio.sleep(link.delay_s())
    if link.cut or link.rng.random() < link.unheard:
        raise KafkaConnectionError("no acknowledgement")
    return SimpleNamespace(timestamp=made.timestamp, offset=made.offset)


async def _topic_exists(log: Log, name: str) -> None:
    """Wait until the topic exists. Raises UnknownTopicOrPartitionError after 10 s."""
    waited_s = 0.0
    while short_name(name, PREFIX) in log.absent:
        if waited_s >= _METADATA_S:
            raise UnknownTopicOrPartitionError(name)
        await asyncio.sleep(_POLL_S)
        waited_s += _POLL_S


def _append(
    log: Log, link: Link, name: str, value: bytes | None, key: bytes | None, headers: Headers
) -> Entry:
    short = short_name(name, PREFIX)
    made = log.append(short, key, value, headers)
    if short != "leadership" and link.rng.random() < link.copies:
        log.append(short, key, value, headers)
    return made


class SimLeaderProducer:
    """Simulated `LeaderProducer`, with transactions if the broker has them."""

    def __init__(self, log: Log, link: Link) -> None:
        self._log = log
        self._link = link
        self._epoch = 0
        self._open: list[tuple[str, bytes | None, bytes | None, Headers]] | None = None

    @property
    def transactional(self) -> bool:
        return self._log.transactional

    async def open(self) -> None:
        """Fence the previous producer: the broker then refuses its writes."""
        await asyncio.sleep(self._link.delay_s())
        if self._link.cut or self._log.away:
            raise KafkaConnectionError("no broker")
        self._log.epoch += 1
        self._epoch = self._log.epoch

    async def send(
        self, name: str, value: bytes | None, key: bytes | None, headers: Headers
    ) -> asyncio.Future[Any]:
        """Queue one record."""
        await _topic_exists(self._log, name)
        self._link.burn()
        if self._open is not None:
            self._open.append((name, value, key, headers))
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return asyncio.ensure_future(written(self._log, self._link, name, value, key, headers))

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Write the queued records; with transactions, all or none."""
        if not self.transactional:
            yield
            return
        self._open = []
        try:
            yield
            batch = self._open
        finally:
            self._open = None
        await asyncio.sleep(self._link.delay_s())
        if self._link.cut or self._log.away or self._link.rng.random() < self._link.lost:
            raise KafkaConnectionError("no broker")
        if self._epoch != self._log.epoch:
            raise Fenced("the broker has fenced this controller")
        places: set[Place] = set()
        for name, value, key, headers in batch:
            made = _append(self._log, self._link, name, value, key, headers)
            places.add((short_name(name, PREFIX), made.partition))
        self._log.end_transaction(sorted(places))
        if self._link.fuse >= 0 and self._link.rng.random() < 0.3:
            self._link.fuse = 0  # killed before the acknowledgement
            self._link.burn()
        await asyncio.sleep(self._link.delay_s())
        if self._link.rng.random() < self._link.unheard:
            raise KafkaConnectionError("no acknowledgement")


class SimConsumer:
    """A consumer without a group, with the methods of aiokafka that the controller calls."""

    def __init__(self, log: Log, link: Link, now_s: Callable[[], float]) -> None:
        self._log = log
        self._link = link
        self._now_s = now_s
        self._places: dict[TopicPartition, Place] = {}
        self._at = Positions(log, link, ())
        self._paused: set[TopicPartition] = set()
        self._fetched_s = 0.0

    async def start(self) -> None:
        await self._connected()

    async def stop(self) -> None:
        pass

    def assign(self, parts: Iterable[TopicPartition]) -> None:
        self._places = {part: (short_name(part.topic, PREFIX), part.partition) for part in parts}
        self._at = Positions(self._log, self._link, self._places.values())

    def assignment(self) -> Iterable[TopicPartition]:
        return self._places.keys()

    def seek(self, part: TopicPartition, offset: int) -> None:
        self._at.next[self._places[part]] = offset

    async def position(self, part: TopicPartition) -> int:
        return self._at.next[self._places[part]]

    def pause(self, *parts: TopicPartition) -> None:
        self._paused |= set(parts)

    def resume(self, *parts: TopicPartition) -> None:
        self._paused -= set(parts)

    async def beginning_offsets(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        await self._connected(parts)
        return dict.fromkeys(parts, 0)

    async def end_offsets(self, parts: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        await self._connected(parts)
        return {part: self._log.parts[self._places[part]].end for part in parts}

    async def offsets_for_times(self, times: dict[TopicPartition, int]) -> dict[Any, Any]:
        await self._connected(times)
        return {
            part: next(
                (e for e in self._log.parts[self._places[part]].entries if e.timestamp >= since_ms),
                None,
            )
            for part, since_ms in times.items()
        }

    def highwater(self, part: TopicPartition) -> int | None:
        return self._log.parts[self._places[part]].end

    def last_poll_timestamp(self, _part: TopicPartition) -> int:
        return int(self._fetched_s * 1000)

    async def getmany(
        self, *parts: TopicPartition, timeout_ms: int, max_records: int
    ) -> dict[TopicPartition, list[Entry]]:
        until_s = self._now_s() + timeout_ms / 1000.0
        while True:
            found: dict[TopicPartition, list[Entry]] = {}
            if not (self._link.cut or self._log.away):
                self._fetched_s = self._now_s()
                ends, at = self._log.parts, self._at.next
                for part, place in self._places.items():
                    wanted = part not in self._paused and (not parts or part in parts)
                    if wanted and at[place] != ends[place].end:
                        entries = self._at.take(place, self._fetched_s, max_records)
                        if entries:
                            found[part] = entries
            if found or self._now_s() >= until_s:
                return found
            await asyncio.sleep(_POLL_S)

    async def _connected(self, parts: Iterable[TopicPartition] = ()) -> None:
        """Wait for one answer of the broker. Raises errors of aiokafka."""
        await asyncio.sleep(self._link.delay_s())
        if self._link.cut or self._log.away:
            await asyncio.sleep(1.0)
            raise KafkaConnectionError("no broker")
        for part in parts:
            try:
                await _topic_exists(self._log, part.topic)
            except UnknownTopicOrPartitionError:
                raise KafkaTimeoutError from None


async def ensured(log: Log, link: Link) -> EnsuredTopics:
    """Create the absent topics, as `ensure_topics` does."""
    await asyncio.sleep(link.delay_s())
    if link.cut or log.away:
        raise BrokerUnreachable("", "no broker")
    created = log.create()
    return EnsuredTopics(False, tuple(PREFIX + name for name in created), {})


__all__ = ["SimConsumer", "SimLeaderProducer", "SimProducer", "ensured", "written"]
