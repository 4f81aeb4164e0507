"""Follow the topics of a run and fold them into a picture.

Unreadable records are skipped, so they do not stop the screen. The controller writes their dead
letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError

from streams.tools.up.run_state import Picture
from topics.checks import InvalidValue
from topics.codec import decode
from topics.edge.kafka_clients import consumer as new_consumer
from topics.topic_table import ASSIGNMENTS, DECISIONS, PLANS, PRICES, ROUTES, STATUS, TELEMETRY

log = logging.getLogger(__name__)

_FOLLOWED = (TELEMETRY, STATUS, ROUTES, DECISIONS, ASSIGNMENTS, PLANS, PRICES)


async def follow(bootstrap: str, prefix: str, picture: Picture) -> None:
    """Read all topics with this prefix into `picture`, until cancelled."""
    short = {topic.wire_name(prefix): topic.name for topic in _FOLLOWED}
    consumer = new_consumer(
        bootstrap, "shoal-up", max_poll_records=2000, isolation_level="read_committed"
    )
    try:
        await consumer.start()
        consumer.assign(
            [
                TopicPartition(topic.wire_name(prefix), partition)
                for topic in _FOLLOWED
                for partition in range(topic.partitions)
            ]
        )
        await consumer.seek_to_beginning()
        while True:
            with contextlib.suppress(KafkaError):
                batches = await consumer.getmany(timeout_ms=200)
                for messages in batches.values():
                    for message in messages:
                        if message.value is not None:
                            take(short[message.topic], message.value, picture)
            await asyncio.sleep(0.02)
    finally:
        await consumer.stop()


def take(topic: str, value: bytes, picture: Picture) -> None:
    """Add one record to `picture`. An unreadable record, or one that the picture cannot show, is
    skipped."""
    with contextlib.suppress(InvalidValue):
        record = decode(topic, value)
        try:
            picture.add(record)
        except (ValueError, ArithmeticError, LookupError) as error:
            log.warning("%s: a record cannot be shown: %s", topic, error)
