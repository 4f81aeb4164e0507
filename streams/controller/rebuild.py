"""At the start: everything the control topics hold, read to their ends before the first tick.

Owns that reading, and the hand-over: it commits where it ended for the group of the Faust agents,
which go on exactly there, so no record is missed and none is read by both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer, TopicPartition

from streams.controller.latest import Latest
from streams.poison import Poison
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.table import (
    ALERTS,
    ASSIGNMENTS,
    AVAILABILITY,
    CONTROLS,
    DEAD_LETTERS,
    DECISIONS,
    LEADERSHIP,
    PLANS,
    PRICES,
    ROUTES,
    SERVICES,
    STATUS,
    Cleanup,
    Topic,
    short_name,
)

FOLLOWED = (
    STATUS,
    ASSIGNMENTS,
    ROUTES,
    DECISIONS,
    LEADERSHIP,
    AVAILABILITY,
    PRICES,
    SERVICES,
    CONTROLS,
    ALERTS,
)
"""Topics that the agents follow after the rebuild."""

_READ = (*FOLLOWED, PLANS, DEAD_LETTERS)
_MOST_PER_PARTITION = 5000


async def read_latest(
    bootstrap: str, prefix: str, group: str, timeout_s: float = 60.0
) -> tuple[Latest, list[Poison]]:
    """The latest of all control topics as they are now, and what of them was not understood.

    Of topics that are deleted by age only the last 5000 records per partition are read. `group`
    goes on where this ended. TimeoutError after `timeout_s` real seconds.
    """
    latest, poison = Latest(), list[Poison]()
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id="shoal-rebuild",
        group_id=group,
        enable_auto_commit=False,
        fetch_max_wait_ms=50,
    )
    await consumer.start()
    try:
        partitions = _partitions(_READ, prefix)
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        starts = await consumer.beginning_offsets(partitions)
        cut = {topic.wire_name(prefix) for topic in _READ if topic.cleanup is Cleanup.DELETE}
        for part in partitions:
            newest = ends[part] - _MOST_PER_PARTITION if part.topic in cut else 0
            consumer.seek(part, max(starts[part], newest))
        async with asyncio.timeout(timeout_s):
            while [p for p in partitions if await consumer.position(p) < ends[p]]:
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    for message in messages:
                        _take(latest, poison, short_name(message.topic, prefix), message)
        followed = _partitions(FOLLOWED, prefix)
        await consumer.commit({part: await consumer.position(part) for part in followed})
    finally:
        await consumer.stop()
    latest.take_alerts()  # of the past: whatever they were about, the first plan sees it
    return latest, [one for one in poison if one.place not in latest.dead]


def _partitions(topics: Iterable[Topic], prefix: str) -> list[TopicPartition]:
    return [
        TopicPartition(topic.wire_name(prefix), number)
        for topic in topics
        for number in range(topic.partitions)
    ]


def _take(latest: Latest, poison: list[Poison], name: str, message: object) -> None:
    key, value = getattr(message, "key", None), getattr(message, "value", None)
    offset = int(getattr(message, "offset", 0))
    if value is None:
        latest.drop(name, (key or b"").decode(errors="replace"))
        return
    try:
        latest.take(decode(name, value), offset)
    except InvalidRecord as error:
        partition = int(getattr(message, "partition", 0))
        poison.append(Poison(name, partition, offset, value, str(error)))
