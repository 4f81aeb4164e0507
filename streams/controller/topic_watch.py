"""Watch over the topics of an Apache Kafka broker while the controller runs."""

from __future__ import annotations

import asyncio
import logging

from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import EnsuredTopics, TopicsUnusable, ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.controller.tick_loop import Loop
from streams.ports.telemetry_topic import TelemetryTopic

log = logging.getLogger(__name__)

_PAUSE_S = 15.0


class TopicWatch:
    """Recreates deleted topics and makes the readers follow added partitions."""

    def __init__(
        self,
        broker: str,
        prefix: str,
        control: ControlTopics,
        telemetry: TelemetryTopic,
        loop: Loop,
    ) -> None:
        self._broker = broker
        self._prefix = prefix
        self._control = control
        self._telemetry = telemetry
        self._loop = loop

    async def run(self) -> None:
        """Check the topics every 15 s, without end. A fault is logged, and repeated faults of the
        same kind once."""
        said = ""
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                found = await ensure_topics(self._broker, self._prefix)
            except BrokerUnreachable as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("topics: %s", said)
                continue
            except TopicsUnusable as error:
                log.error("topics: %s", error)
                continue
            said = ""
            if found.created:
                log.error("deleted topics were created again, empty: %s", ", ".join(found.created))
                self._loop.say_again()
            report_changed(found)
            self._control.repartition(found.partitions)
            self._telemetry.repartition(found.partitions)


def report_changed(found: EnsuredTopics) -> None:
    """Log the topics whose settings were corrected, if any."""
    if found.changed:
        log.warning("settings of topics were corrected: %s", ", ".join(found.changed))
