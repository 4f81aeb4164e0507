"""End offsets of `telemetry`, to compare with what window workers have merged."""

from __future__ import annotations

from collections.abc import Mapping

from aiokafka import AIOKafkaConsumer, TopicPartition

from topics.edge.kafka_clients import consumer as new_consumer
from topics.topic_table import TELEMETRY


class TelemetryEnds:
    """Queries the broker. The client opens with the first query and after an error."""

    def __init__(self, bootstrap: str, prefix: str, partitions: Mapping[str, int]) -> None:
        self._bootstrap = bootstrap
        self._name = TELEMETRY.wire_name(prefix)
        self._count = partitions.get(TELEMETRY.name, TELEMETRY.partitions)
        self._consumer: AIOKafkaConsumer | None = None

    def repartition(self, partitions: Mapping[str, int]) -> None:
        """Apply a changed partition count."""
        self._count = partitions.get(TELEMETRY.name, self._count)

    async def query(self) -> Mapping[int, int]:
        """The end offset of each partition. Raises KafkaError or OSError."""
        if self._consumer is None:
            self._consumer = new_consumer(self._bootstrap, "shoal-telemetry-ends")
            await self._consumer.start()
        places = [TopicPartition(self._name, number) for number in range(self._count)]
        ends = await self._consumer.end_offsets(places)
        return {place.partition: end for place, end in ends.items()}

    async def close(self) -> None:
        """Close the client."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None
