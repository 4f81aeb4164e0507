"""Demand merged by window workers: the `demand` topic."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from streams.ports.demand_source import Sink
from streams.ports.topic_reader import TopicReader
from topics.checks import InvalidValue
from topics.codec import decode
from topics.demand import Demand
from topics.topic_table import DEMAND


class DemandTopic(TopicReader):
    """Reads the records of window workers. Records of older workers, without offsets, do not count,
    because they could not be told apart from those that this controller computes. written: by
    partition of `telemetry`, the offset after the last record that workers merged. news: set after
    each read record."""

    topic = DEMAND

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.written: dict[int, int] = {}
        self.news = asyncio.Event()

    def _take(self, messages: Sequence[Any], sink: Sink) -> None:
        records: list[Demand] = []
        for message in messages:
            value = message.value or b""
            place = message.partition, message.offset, value
            refused = self.verifier.refusal(
                DEMAND.name, message.key, value, message.headers, message.timestamp
            )
            if refused is not None:
                self.forgeries.tell(self._poison(*place, refused))
                continue
            try:
                record = decode(DEMAND.name, value)
            except InvalidValue as error:
                self.on_poison(self._poison(*place, str(error)))
                continue
            if record.last_offset >= 0:
                records.append(record)
                self.written[record.partition] = record.last_offset + 1
        self.merged.take(records, sink)
        self.news.set()
