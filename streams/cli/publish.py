"""Write records to topics, and read a small topic to its end.

The broker comes from --broker, the file, or a running controller. A failure is one line.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from streams.broker.broker_reach import BrokerUnreachable, parse_address
from streams.broker.topic_admin import TopicsUnusable, ensure_topics
from streams.cli.controller_client import add_url, status
from streams.files.keyfiles import operator_keys
from streams.files.user_errors import UserError
from topics.checks import InvalidValue
from topics.codec import decode, encode
from topics.edge.kafka_clients import consumer as new_consumer
from topics.edge.kafka_clients import producer as new_producer
from topics.error_text import error_text
from topics.keys import OPERATOR_KEY, Keys, Principal
from topics.macs import Signer, Verifier
from topics.topic_table import PREFIX, Topic, key_of, topic_of

_TIMEOUT_S = 15.0
_LAST = 5000


def add_broker(
    parser: argparse.ArgumentParser, otherwise: str = "that of the controller at --url"
) -> None:
    """The options that choose the broker. otherwise: the help text for the default."""
    add_url(parser)
    parser.add_argument("--broker", metavar="HOST:PORT", help=f"default: {otherwise}")
    parser.add_argument("--prefix", default="", help=f"of topic names (default {PREFIX})")


@dataclass(frozen=True, slots=True)
class Broker:
    """The broker and the domain of its records.

    now_ms: domain time, from the controller if the controller was queried. models, pools: the
    models and pools that the controller declares; empty without a query. keys: the operator's keys,
    which sign written records.
    """

    address: str
    prefix: str
    now_ms: int
    models: tuple[str, ...] = ()
    pools: tuple[str, ...] = ()
    keys: Keys = field(default_factory=Keys)

    @classmethod
    def of(cls, args: argparse.Namespace, kafka: str = "") -> Broker:
        """The broker that the options of `add_broker` select. kafka: the file's broker, used
        without --broker.
        """
        if args.broker or kafka:
            address = parse_address(args.broker or kafka)
            keys = operator_keys(address, args.prefix or PREFIX)
            return cls(address, args.prefix or PREFIX, _wall_ms(), keys=keys)
        found = status(args.url)
        prefix = args.prefix or str(found["prefix"])
        models = tuple(model["model"] for model in found["models"])
        pools = tuple(found.get("pools", ()))
        address = str(found["broker"])
        keys = operator_keys(address, prefix)
        if found.get("records_signed") and not keys.principal_keys(Principal.OPERATOR):
            raise UserError(
                f"the controller at {args.url} accepts only records that an operator signed; set "
                f"{OPERATOR_KEY}_FILE to the file of `shoal keys derive --operator`"
            )
        return cls(address, prefix, int(found["now_ms"]), models, pools, keys)

    def publish(self, records: Iterable[Any], partition: int | None = None) -> None:
        """Write `records` in order and return when the broker has all of them. partition: None for
        the one of each key.

        UserError: the broker does not answer or its topics are unusable.
        """
        self.write(((topic_of(one), key_of(one), encode(one)) for one in records), partition)

    def write(
        self,
        values: Iterable[tuple[Topic, bytes | None, bytes | None]],
        partition: int | None = None,
    ) -> None:
        """Write (topic, key, value) as `publish` does. A value of None deletes the key."""
        self._run(self._write(list(values), partition))

    def last(self, topic: Topic, most: int = 5000) -> list[Any]:
        """The last records of a topic, oldest first, at most `most` per partition.

        Unreadable records are left out. UserError as in `publish`.
        """
        found = []
        for _, value in self.values(topic, most):
            with suppress(InvalidValue):
                found.append(decode(topic.name, value or b""))
        return found

    def values(self, topic: Topic, most: int) -> list[tuple[bytes | None, bytes | None]]:
        """The last (key, value) pairs of a topic, undecoded. UserError as in `publish`.

        The value of a deleted key is None; a value without a valid signature is b"".
        """
        found: list[tuple[bytes | None, bytes | None]] = self._run(self._values(topic, most))
        return found

    def messages(self, topic: Topic, most: int) -> list[Any]:
        """The last messages of a topic with their headers; signatures are not checked. UserError as
        in `publish`."""
        found: list[Any] = self._run(self._messages(topic, most))
        return found

    def _run(self, work: Any) -> Any:
        async def limited() -> Any:
            async with asyncio.timeout(_TIMEOUT_S):
                return await work

        try:
            return asyncio.run(limited())
        except (BrokerUnreachable, TopicsUnusable, KafkaError, TimeoutError) as error:
            why = error_text(error, "no answer in time")
            raise UserError(f"--broker {self.address}: {why}") from error

    async def _write(
        self, values: list[tuple[Topic, bytes | None, bytes | None]], partition: int | None
    ) -> None:
        await ensure_topics(self.address, self.prefix)
        signer = Signer(self.keys, _wall_ms)
        if signer:  # The clock of the last signer may be ahead of this one.
            for topic in {topic for topic, _, _ in values}:
                for message in await self._messages(topic, _LAST):
                    signer.on_record(topic.name, message.key, message.headers)
        producer = new_producer(self.address, "shoal-cli")
        await producer.start()
        try:
            for topic, key, value in values:
                headers = signer.headers(topic.name, key, value)
                await producer.send_and_wait(
                    topic.wire_name(self.prefix),
                    value,
                    key=key,
                    headers=headers,
                    partition=partition,
                )
        finally:
            await producer.stop()

    async def _values(self, topic: Topic, most: int) -> list[tuple[bytes | None, bytes | None]]:
        verifier = Verifier(self.keys)
        found: list[tuple[bytes | None, bytes | None]] = []
        for one in await self._messages(topic, most):
            refused = verifier.refusal(topic.name, one.key, one.value, one.headers, one.timestamp)
            found.append((one.key, one.value if refused is None else b""))
        return found

    async def _messages(self, topic: Topic, most: int) -> list[Any]:
        ensured = await ensure_topics(self.address, self.prefix)
        name = topic.wire_name(self.prefix)
        parts = [TopicPartition(name, k) for k in range(ensured.partitions[topic.name])]
        consumer = new_consumer(
            self.address, "shoal-cli", fetch_max_wait_ms=50, isolation_level="read_committed"
        )
        found: list[Any] = []
        await consumer.start()
        try:
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            starts = await consumer.beginning_offsets(parts)
            for part in parts:
                consumer.seek(part, max(starts[part], ends[part] - most))
            while [part for part in parts if await consumer.position(part) < ends[part]]:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    found += messages
        finally:
            await consumer.stop()
        return found


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
