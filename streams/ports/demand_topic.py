"""Read the demand merged by window workers: the `demand` topic, read like `telemetry`.

Merged records become input for the windows: the total of all gateways per second, and the latest
record of each gateway. A total that is read twice counts once.
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
_NO_STATE = (0,) * (len(COLUMNS) - len(COUNTS) - 2)

_Said = tuple[SourceName, tuple[int, ...], bytes, SentByKind, int]
"""Names, numbers, cells and kinds of a record as in `TelemetryBatch`, and the end of its span in ms
of the broker's clock."""


class DemandTopic(TelemetryTopic):
    """A `TelemetryTopic` for the topic `DEMAND`.

    Records of gateways come without counts. The counts come under substitute gateway names,
    `MERGED`-partition.
    """

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
    # `hear` counts no requests. An arrival only shows that the gateway had requests.
    served = _SERVED if word.active else _IDLE
    said = (*served, 0, 0, 0, word.in_flight, word.route_generation, int(word.leaving))
    return (model, word.gateway, word.boot), said, b"", (), word.end_ms


def _merged(record: Demand, second: DemandSecond) -> _Said:
    """Counts of `second` as a record of a substitute gateway.

    The sequence number follows from the append time and the start of the second, so a copy has the
    same number. Kinds count in the newest second.
    """
    turns, turn = divmod(max(0, record.appended_s - second.start_ms // 1000 + 1), _SHARE)
    return (
        (record.model, f"{MERGED}-{record.partition}", f"merged-{turns}"),
        (
            *second.counts,
            record.appended_s * _SHARE + turn,
            1000,
            *[0] * (len(COLUMNS) - len(COUNTS) - 2),
        ),
        parse_cells(second.cells) or b"",
        tuple(sorted(record.kinds.items())) if second is record.seconds[-1] else (),
        second.start_ms + 1000,
    )
