"""Read the demand merged by window workers: the `demand` topic, read as `telemetry` is.

Converts merged records to the input of windows: the total of all gateways per second, counted once
even if read twice, and the latest record of each gateway.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streams.clock import EventsMs
from streams.ports.demand_source import Sink
from streams.ports.telemetry_topic import TelemetryTopic
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.demand import Demand, DemandSecond, GatewayState
from topics.telemetry import COUNTS
from topics.telemetry_columns import COLUMNS, SentByKind, SourceName, TelemetryBatch, parse_cells
from topics.topic_table import DEMAND

MERGED = "window-workers"
_SHARE = 64
_SERVED = (1, *[0] * (len(COUNTS) - 1))
_IDLE = (0,) * len(COUNTS)

_Said = tuple[SourceName, tuple[int, ...], bytes, SentByKind, int]
"""A record as in `TelemetryBatch`, and ms of the broker's clock."""


class DemandTopic(TelemetryTopic):
    """A `TelemetryTopic` with topic `DEMAND`. Gateway records come without counts; the counts come
    from "gateways" named `MERGED`-partition."""

    def _take(self, messages: Sequence[Any], events_ms: EventsMs, sink: Sink) -> None:
        said: list[_Said] = []
        for message in messages:
            value = message.value or b""
            refused = self._verifier.refusal(
                DEMAND.name, message.key, value, message.headers, message.timestamp
            )
            if refused is not None:
                self._forgeries.tell(self._poison(message, refused))
                continue
            try:
                record = decode(DEMAND.name, value)
            except InvalidRecord as error:
                self._on_poison(self._poison(message, str(error)))
            else:
                said += [_merged(record, second) for second in record.seconds]
                said += [_word(record.model, word) for word in record.gateways]
        if not said:
            return
        names, numbers, cells, kinds, at_ms = zip(*said, strict=True)
        sink(
            TelemetryBatch(
                names,
                np.array(numbers, np.int64),
                cells,
                {at: one for at, one in enumerate(kinds) if one},
            ),
            events_ms(np.array(at_ms, np.int64), np.zeros(len(said), np.int64)),
        )


def _word(model: str, word: GatewayState) -> _Said:
    # `hear` takes an arrival for a sign of service, and counts nothing.
    served = _SERVED if word.active else _IDLE
    said = (*served, 0, 0, 0, word.in_flight, word.route_generation, int(word.leaving))
    return (model, word.gateway, word.boot), said, b"", (), word.end_ms


def _merged(record: Demand, second: DemandSecond) -> _Said:
    """The sequence follows from when it was appended and how old it was then: a copy has it too.
    Kinds count in the newest second."""
    turns, turn = divmod(max(0, record.appended_s - second.start_ms // 1000 + 1), _SHARE)
    return (
        (record.model, f"{MERGED}-{record.partition}", f"merged-{turns}"),
        (*second.counts, record.appended_s * _SHARE + turn, 1000, *[0] * (len(COLUMNS) - 10)),
        parse_cells(second.cells) or b"",
        tuple(sorted(record.kinds.items())) if second is record.seconds[-1] else (),
        second.start_ms + 1000,
    )
