"""The value that names a broker under test, and what a controller reads of it at its start."""

from __future__ import annotations

from dataclasses import dataclass

from streams.broker.admin import ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.controller.latest import Latest
from streams.poison import Poison
from topics.table import Topic


@dataclass(frozen=True)
class Broker:
    kind: str
    bootstrap: str
    prefix: str

    def name(self, topic: Topic) -> str:
        return topic.wire_name(self.prefix)


async def read_latest(broker: Broker) -> tuple[Latest, list[Poison]]:
    """The last values of the control topics, and what of them was not understood."""
    latest, poison = Latest(), list[Poison]()
    found = await ensure_topics(broker.bootstrap, broker.prefix)
    control = ControlTopics(
        broker.bootstrap,
        broker.prefix,
        found.partitions,
        lambda _topic, record, offset, _ms: latest.take(record, offset),
        latest.drop,
        poison.append,
        embedded=found.embedded,
    )
    try:
        await control.start()
    finally:
        await control.close()
    return latest, poison
