"""Outbox: holds records until the broker has acknowledged them, through outages of any length.

Keeps order, coalesces and retries. A pending record of a compacted topic is dropped if a newer
record with the same key arrives, because only the latest desired state matters. All other records
are sent in order, at least once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from itertools import count
from typing import Any, Protocol

from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError

from topics.codec import encode
from topics.error_text import error_text
from topics.keys import Keys
from topics.macs import Signer
from topics.topic_table import PREFIX, Cleanup, KeyDeletion, key_of, topic_of

log = logging.getLogger(__name__)

_BATCH = 2000
_PAUSE_S = (0.1, 0.2, 0.5, 1.0, 2.0)
MAX_WAITING = 20_000
_UNSENDABLE = (MessageSizeTooLargeError, RecordListTooLargeError)


class Producer(Protocol):
    """Kafka producer as the outbox uses it; implemented by `LeaderProducer`."""

    @property
    def transactional(self) -> bool:
        """Whether a batch is written as one transaction."""

    async def open(self) -> None:
        """Open the producer again after a failure."""

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> asyncio.Future[Any]:
        """Queue one record. The returned future ends when the broker has
        acknowledged the record.
        """

    def batch(self) -> AbstractAsyncContextManager[None]:
        """Context for the sends of one batch."""


class Outbox:
    """Records pending for the broker. `run` sends until it is cancelled or fenced.

    signer: signs records that gateways verify. last_signed_ms: returns the last signing time of
    (short topic name, key) that this process read; new signatures are later. leads: checked before
    each batch. While it is false, nothing is sent, because only a leader may write. A leader whose
    lease lapsed may continue in the same term with its pending records; `clear` ends a term.
    Counters: sent and dropped records. Records are dropped at the end of a term, above MAX_WAITING,
    or if they are larger than the broker accepts, because a retry would block all others.
    """

    def __init__(
        self,
        producer: Producer,
        prefix: str = PREFIX,
        leads: Callable[[], bool] = lambda: True,
        signer: Signer | None = None,
        last_signed_ms: Callable[[str, bytes | None], int] = lambda _topic, _key: 0,
    ) -> None:
        self._last_signed_ms = last_signed_ms
        self._signer = signer or Signer(Keys(), lambda: 0)
        self._producer = producer
        self._prefix = prefix
        self._leads = leads
        self._waiting: dict[object, Any] = {}
        self._numbers = count()
        self._news = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.sent = 0
        self.dropped = 0

    def put(self, record: Any) -> None:
        """Queue `record` or a `KeyDeletion`; a pending older record of a compacted topic with the
        same key is dropped."""
        topic = topic_of(record)
        key: object = next(self._numbers)
        if topic.cleanup is Cleanup.COMPACT:
            key = (topic.name, key_of(record))
            self._waiting.pop(key, None)  # the newer record moves to the end
        self._waiting[key] = record
        if len(self._waiting) > MAX_WAITING:
            self._waiting.pop(next(iter(self._waiting)))
            self.dropped += 1
        self._idle.clear()
        self._news.set()

    async def flushed(self) -> None:
        """Wait until no record is pending."""
        await self._idle.wait()

    def clear(self) -> None:
        """Discard pending records: another controller leads."""
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._idle.set()

    async def run(self) -> None:
        """Send pending records until cancelled; retries with growing delays while the broker is
        unreachable.

        Raises Fenced if another controller leads.
        """
        failures = 0
        while True:
            if not self._waiting:
                self._idle.set()
                self._news.clear()
                await self._news.wait()
            if not self._leads():
                await asyncio.sleep(_PAUSE_S[0])
                continue
            batch = list(self._waiting.items())[:_BATCH]
            if await self._send(batch):
                failures = 0
                continue
            await asyncio.sleep(_PAUSE_S[min(failures, len(_PAUSE_S) - 1)])
            failures += 1
            await self._renew()

    async def _renew(self) -> None:
        """Open the producer again, because a transactional producer may be in any state after a
        failure.

        A former leader must not do this: it would fence the present leader.
        """
        if not self._producer.transactional or not self._leads():
            return
        with contextlib.suppress(KafkaError, OSError, TimeoutError):
            await self._producer.open()

    async def _send(self, batch: list[tuple[object, Any]]) -> bool:
        """Send `batch`. Returns whether the whole batch is finished.

        If a record fails, only the unacknowledged records are sent again. A transaction is sent
        again as a whole.
        """
        taken: list[tuple[object, Any]] = []
        failed: BaseException | None = None
        try:
            async with self._producer.batch():
                taken, failed = await self._deliver(batch)
                if failed is not None and self._producer.transactional:
                    raise failed
        except (KafkaError, OSError, TimeoutError) as error:
            taken, failed = [], error
        for key, record in taken:
            if self._waiting.get(key) is record:
                del self._waiting[key]
                self.sent += 1
        if failed is None:
            return True
        if not isinstance(failed, (KafkaError, OSError, TimeoutError)):
            raise failed
        log.warning("cannot publish: %s", error_text(failed))
        return False

    async def _deliver(
        self, batch: list[tuple[object, Any]]
    ) -> tuple[list[tuple[object, Any]], BaseException | None]:
        """Send `batch`. Returns the acknowledged records and the last failure."""
        queued: list[tuple[object, Any]] = []
        pending: list[asyncio.Future[Any]] = []
        failed: BaseException | None = None
        for key, record in batch:
            topic, key_bytes = topic_of(record), key_of(record)
            value = None if isinstance(record, KeyDeletion) else encode(record)
            if (last_ms := self._last_signed_ms(topic.name, key_bytes)) > 0:
                self._signer.sign_after(topic.name, key_bytes, last_ms)
            headers = self._signer.headers(topic.name, key_bytes, value)
            try:
                future = await self._producer.send(
                    topic.wire_name(self._prefix), value=value, key=key_bytes, headers=headers
                )
            except _UNSENDABLE as error:
                self._give_up(key, record, error)
                continue
            except (KafkaError, TimeoutError) as error:
                failed = error
                break
            queued.append((key, record))
            pending.append(future)
        taken = []
        results = await asyncio.gather(*pending, return_exceptions=True)
        for (key, record), result in zip(queued, results, strict=True):
            if isinstance(result, _UNSENDABLE):
                self._give_up(key, record, result)
                failed = failed or (result if self._producer.transactional else None)
            elif isinstance(result, BaseException):
                failed = result
            else:
                taken.append((key, record))
        return taken, failed

    def _give_up(self, key: object, record: Any, error: BaseException) -> None:
        log.error("a record for %s is lost: %r", topic_of(record).name, error)
        if self._waiting.get(key) is record:
            del self._waiting[key]
        self.dropped += 1
