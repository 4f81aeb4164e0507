"""Pass merged records to the windows, each exactly once.

Merged records become input for the windows: the total of all gateways per second, and the latest
report of each gateway. They come from window workers and from this controller itself, so the same
record may come several times.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import numpy as np

from streams.clock import Clock
from streams.ports.demand_source import Sink
from topics.demand import Demand, DemandSecond, GatewayState
from topics.telemetry import COUNTS
from topics.telemetry_columns import COLUMNS, SentByKind, SourceName, TelemetryBatch, parse_cells

MERGED = "window-workers"
_SERVED = (1, *[0] * (len(COUNTS) - 1))
_IDLE = (0,) * len(COUNTS)
_NO_STATE = (0,) * (len(COLUMNS) - len(COUNTS) - 2)
_SPARE = 16
_MOST_MODELS = 100_000

_Said = tuple[SourceName, tuple[int, ...], bytes, SentByKind, int]
"""Names, numbers, cells and kinds of a record as in `TelemetryBatch`, and the log time of the end
of its span in ms."""


class MergedRecords:
    """Merged records of all partitions, counted once.

    Records of one model and partition are counted in the order of their offsets, and only if every
    record of the partition before them is merged too. counted: by partition, the offset after the
    last counted record.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sequence = 0
        self._newest: dict[tuple[str, int], tuple[int, int]] = {}
        self._starts: dict[int, deque[int]] = {}
        self._counted_s: dict[int, int] = {}
        self.counted: dict[int, int] = {}

    def start(self, partition: int) -> int | None:
        """An offset at which reading `partition` again loses no record; None if no record of it was
        counted. It is some micro-batches back, because the records of a micro-batch are in several
        partitions of `demand`."""
        starts = self._starts.get(partition)
        return starts[0] if starts else None

    def take(self, records: Iterable[Demand], sink: Sink) -> None:
        """Pass the records that are new to the sink: counts under a substitute name of a gateway,
        and reports of gateways without counts."""
        said: list[_Said] = []
        for record in records:
            if self._is_new(record):
                said += [self._merged(record, second) for second in record.seconds]
                said += [_report(record.model, one) for one in record.gateways]
        if not said:
            return
        names, numbers, cells, kinds, log_ms = zip(*said, strict=True)
        batch = TelemetryBatch(
            names,
            np.array(numbers, np.int64),
            cells,
            {at: one for at, one in enumerate(kinds) if one},
        )
        sink(batch, self._clock.of_log()(np.array(log_ms, np.int64)))

    def _is_new(self, record: Demand) -> bool:
        """Whether `record` counts now."""
        partition, end = record.partition, record.last_offset + 1
        counted = self.counted.get(partition, 0)
        if counted and record.first_offset > counted:
            return False
        identity = (record.last_offset, record.appended_s)
        newest = self._newest.get((record.model, partition))
        if newest is not None and identity[0] <= newest[0] and identity[1] <= newest[1]:
            return False
        self._newest.pop((record.model, partition), None)
        self._newest[record.model, partition] = identity
        if len(self._newest) > _MOST_MODELS:
            del self._newest[next(iter(self._newest))]
        # The topic was created again: its offsets began at 0.
        recreated = end <= counted and record.appended_s > self._counted_s[partition]
        if recreated:
            del self._starts[partition]
        if recreated or end > counted:
            self.counted[partition], self._counted_s[partition] = end, record.appended_s
            self._starts.setdefault(partition, deque(maxlen=_SPARE)).append(record.first_offset)
        return True

    def _merged(self, record: Demand, second: DemandSecond) -> _Said:
        """Counts of `second` as a record of a substitute gateway. Kinds count in the newest
        second."""
        self._sequence += 1
        return (
            (record.model, f"{MERGED}-{record.partition}", "merged"),
            (*second.counts, self._sequence, 1000, *_NO_STATE),
            parse_cells(second.cells) or b"",
            tuple(sorted(record.kinds.items())) if second is record.seconds[-1] else (),
            second.start_ms + 1000,
        )


def _report(model: str, one: GatewayState) -> _Said:
    # The windows count no requests of reports. An arrival only shows that the gateway had requests.
    served = _SERVED if one.active else _IDLE
    said = (*served, 0, 0, 0, one.in_flight, one.route_generation, int(one.leaving))
    return (model, one.gateway, one.boot), said, b"", (), one.end_ms
