"""Kafka producer of the leader.

It has one transactional id per cluster, so the broker fences the producers of other controllers. It
is opened again after a failure. The embedded broker does not fence, so the producer is not
transactional there. Readers then refuse lower tokens, and the leader overwrites records of other
writers.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

from aiokafka.errors import InvalidProducerEpoch, KafkaConnectionError, KafkaError, ProducerFenced

from topics.edge.kafka_clients import producer as new_producer

log = logging.getLogger(__name__)

_TRANSACTION_MS = 10_000


class Fenced(RuntimeError):
    """Another controller took over the transactional id; this controller no longer leads."""


class LeaderProducer:
    """Producer of one term. transactional: whether the broker's transactions fence other
    producers."""

    def __init__(self, bootstrap: str, client_id: str, prefix: str, transactional: bool) -> None:
        self._bootstrap = bootstrap
        self._client_id = client_id
        self._id = f"{prefix}leader" if transactional else None
        self._producer: Any = None

    @property
    def transactional(self) -> bool:
        """Whether a batch is written as one transaction."""
        return self._id is not None

    async def open(self) -> None:
        """Fence the previous producer and abort its open transaction. Raises exceptions of
        aiokafka."""
        await self.close()
        more: dict[str, Any] = {"request_timeout_ms": 10_000}
        if self._id is not None:
            more |= {"transactional_id": self._id, "transaction_timeout_ms": _TRANSACTION_MS}
        made = new_producer(self._bootstrap, self._client_id, **more)
        try:
            await made.start()
        except BaseException:
            await made.stop()
            raise
        self._producer = made

    async def close(self) -> None:
        """Close the connection."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, OSError):
                await producer.stop()

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]],
    ) -> Any:
        """Queue one record; value None is a tombstone. The returned future ends when the broker has
        acknowledged the record.
        """
        return await self._producer.send(topic, value=value, key=key, headers=headers)

    @contextlib.asynccontextmanager
    async def batch(self) -> AsyncIterator[None]:
        """Context of a batch: its records become visible together at the end, or not at all if the
        block raises. Fenced: another controller leads. KafkaConnectionError: the last `open`
        failed."""
        if self._id is None:
            yield
            return
        if self._producer is None:
            raise KafkaConnectionError("no producer: it could not be opened again")
        try:
            async with self._producer.transaction():
                yield
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise Fenced("the broker has fenced this controller") from error
