"""Watch over the topics of an Apache Kafka broker while the controller runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from streams.broker.broker_reach import BrokerUnreachable
from streams.broker.topic_admin import EnsuredTopics, TopicsUnusable, ensure_topics
from streams.controller.control_topics import ControlTopics
from streams.ports.telemetry_topic import TelemetryTopic
from streams.ports.worker_demand import WorkerDemand
from topics.topic_table import short_name

log = logging.getLogger(__name__)

_PAUSE_S = 15.0


class TopicWatch:
    """Recreates deleted topics and makes the readers follow added partitions. on_created: called
    with the short name of a topic that this process created again. ensure: creates the missing
    topics; replaced in simulations."""

    def __init__(
        self,
        broker: str,
        prefix: str,
        control: ControlTopics,
        telemetry: TelemetryTopic | WorkerDemand,
        on_created: Callable[[str], None],
        ensure: Callable[[str, str], Awaitable[EnsuredTopics]] | None = None,
    ) -> None:
        self._on_created = on_created
        self._ensure = ensure or ensure_topics
        self._broker = broker
        self._prefix = prefix
        self._control = control
        self._telemetry = telemetry

    async def run(self) -> None:
        """Check the topics every 15 s, without end. A fault is logged, and repeated faults of the
        same kind once."""
        said = ""
        while True:
            await asyncio.sleep(_PAUSE_S)
            try:
                found = await self._ensure(self._broker, self._prefix)
            except BrokerUnreachable as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("topics: %s", said)
                continue
            except TopicsUnusable as error:
                log.error("topics: %s", error)
                continue
            said = ""
            for name in found.created:
                self._on_created(short_name(name, self._prefix))
            report_changed(found)
            self._control.repartition(found.partitions)
            self._telemetry.repartition(found.partitions)


def report_changed(found: EnsuredTopics) -> None:
    """Log the topics whose settings were corrected, if any."""
    if found.changed:
        log.warning("settings of topics were corrected: %s", ", ".join(found.changed))
