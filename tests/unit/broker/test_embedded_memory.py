"""The memory of the embedded broker is bounded."""

from __future__ import annotations

import re
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from streams.broker.embedded import embedded_broker
from topics.topic_table import TABLE

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "kafka.md"


def test_a_full_partition_drops_its_oldest_records() -> None:
    """5 MiB fit, in any form of records."""
    sent, size = 80, 100_000
    with embedded_broker({"t": 1}) as at:
        producer = Producer({"bootstrap.servers": at, "linger.ms": 0, "batch.num.messages": 1})
        for _ in range(sent):
            producer.produce("t", bytes(size))
        assert producer.flush(60) == 0
        reader = Consumer({"bootstrap.servers": at, "group.id": "g"})
        first, end = reader.get_watermark_offsets(TopicPartition("t", 0), timeout=60)
        reader.close()
    assert end == sent
    assert 4.5 * 2**20 < (end - first) * size < 5.5 * 2**20


def test_the_documented_bound_counts_every_partition() -> None:
    text = PAGE.read_text()
    found = re.search(
        r"its (\d+) partitions.* takes 5 to (\d+) MiB.* below (\d+) MiB \((\d+)", text
    )
    assert found is not None
    partitions, each, bound, at_start = map(int, found.groups())
    assert partitions == sum(topic.partitions for topic in TABLE)
    assert partitions * each + at_start <= bound
