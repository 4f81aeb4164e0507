"""Kafka clients in virtual time, for the real parts of the controller."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from aiokafka.errors import KafkaConnectionError

from loadtests.invariants.log import T0, Entry, Link, Log, Reader
from streams.controller.leader_producer import Fenced
from topics.topic_table import PREFIX, short_name

_POLL_S = 0.1


class SimProducer:
    """A plain producer, as `LeadershipClient` uses it."""

    def __init__(self, log: Log, link: Link) -> None:
        self._log = log
        self._link = link

    async def send_and_wait(self, name: str, value: bytes, key: bytes | None) -> Any:
        """Write one record and wait for the broker's acknowledgement."""
        return await written(self._log, self._link, name, value, key)


async def written(log: Log, link: Link, name: str, value: bytes, key: bytes | None) -> Any:
    """Write a record. Returns it as the broker stored it.

    Raises KafkaConnectionError without an acknowledgement; the broker may have stored the record
    nevertheless.
    """
    await asyncio.sleep(link.delay_s())
    if link.cut or log.away:
        await asyncio.sleep(1.0)
        raise KafkaConnectionError("no broker")
    if link.rng.random() < link.lost:
        raise KafkaConnectionError("lost on the way")
    made = _append(log, link, name, value, key)
    await asyncio.sleep(link.delay_s())
    if link.rng.random() < link.unheard:
        raise KafkaConnectionError("no acknowledgement")
    return SimpleNamespace(timestamp=made.append_ms, offset=made.offset)


def _append(log: Log, link: Link, name: str, value: bytes, key: bytes | None) -> Entry:
    short, text = short_name(name, PREFIX), (key or b"").decode()
    made = log.append(short, text, value)
    if short != "leadership" and link.rng.random() < link.copies:
        log.append(short, text, value)
    return made


class SimLeaderProducer:
    """Simulated `LeaderProducer`, with transactions if the broker has them."""

    def __init__(self, log: Log, link: Link) -> None:
        self._log = log
        self._link = link
        self._epoch = 0
        self._open: list[tuple[str, bytes, bytes | None]] | None = None

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
        self, name: str, value: bytes, key: bytes | None, headers: Sequence[tuple[str, bytes]]
    ) -> asyncio.Future[Any]:
        """Queue one record. The log keeps no headers."""
        if self._open is not None:
            self._open.append((name, value, key))
            done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done
        return asyncio.ensure_future(written(self._log, self._link, name, value, key))

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
        for name, value, key in batch:
            _append(self._log, self._link, name, value, key)
        await asyncio.sleep(self._link.delay_s())
        if self._link.rng.random() < self._link.unheard:
            raise KafkaConnectionError("no acknowledgement")


class Followed:
    """The topics of a controller, in the roles of `ControlTopics` and of a demand source."""

    def __init__(
        self,
        log: Log,
        reader: Reader,
        now_s: Callable[[], float],
        take: Callable[[str, Entry], None],
    ) -> None:
        self._log = log
        self._reader = reader
        self._now_s = now_s
        self._take = take

    async def follow(self) -> None:
        """Follow until the process ends."""
        while True:
            self.once()
            await asyncio.sleep(_POLL_S)

    def once(self) -> None:
        """Read the records that have arrived."""
        for name, entry in self._reader.poll(self._now_s()):
            self._take(name, entry)

    async def caught_up(self) -> None:
        """Wait until every record that existed at the call is read."""
        while not self._reader.at_end():
            self.once()
            await asyncio.sleep(_POLL_S / 2)

    live = caught_up


__all__ = ["T0", "Followed", "SimLeaderProducer", "SimProducer", "written"]
