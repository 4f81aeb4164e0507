"""Demand that window workers merged: the `demand` topic, read as `telemetry` is.

Owns the way back from merged records to what windows count: the seconds of all gateways together,
counted once however often they come, and each gateway's last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from streams.ports.demand import Sink
from streams.ports.telemetry_topic import EventMs, TelemetryTopic
from topics.checks import InvalidRecord
from topics.codec import decode
from topics.demand import Demand, DemandSecond
from topics.reported import Reported, cells_of
from topics.sketch import from_base64, to_text
from topics.table import DEMAND
from topics.telemetry import COUNTS, SKETCHES

MERGED = "window-workers"
_SHARE = 64
_NOTHING = (0,) * len(COUNTS)


class DemandTopic(TelemetryTopic):
    """Made as a `TelemetryTopic` with topic `DEMAND`. Words of gateways come as records without
    counts; the counts come from "gateways" called `MERGED`-partition."""

    def _take(self, messages: Sequence[Any], event_ms: EventMs, sink: Sink) -> None:
        for message in messages:
            try:
                record = decode(DEMAND.name, message.value or b"")
            except InvalidRecord as error:
                self._bury(message, error)
            else:
                sink(list(_said(record, event_ms)))


def _said(record: Demand, event_ms: EventMs) -> Iterator[tuple[Reported, int]]:
    for second in record.seconds:
        newest = second is record.seconds[-1]
        yield _merged(record, second, newest), event_ms(second.start_ms + 1000, 0)
    for word in record.gateways:
        # `hear` takes an arrival for a sign of service, and counts nothing.
        served = (int(word.active), *_NOTHING[1:])
        said = Reported(
            record.model, word.gateway, word.boot, 0, 0, 0, word.in_flight, word.route_generation,
            word.leaving, served, b"",
        )  # fmt: skip
        yield said, event_ms(word.end_ms, 0)


def _merged(record: Demand, second: DemandSecond, newest: bool) -> Reported:
    """The sequence follows from when it was appended and how old it was then: a copy has it too.
    Kinds count in the newest second."""
    before = zip(SKETCHES, second.sketches, strict=False)
    cells = second.cells or to_text(from_base64(name, text) for name, text in before)
    turns, turn = divmod(max(0, record.appended_s - second.start_ms // 1000 + 1), _SHARE)
    return Reported(
        record.model, f"{MERGED}-{record.partition}", f"merged-{turns}",
        record.appended_s * _SHARE + turn, 1000, 0, 0, 0, False, second.counts,
        cells_of(cells) or b"",
        tuple(sorted(record.kinds.items())) if newest else (),
    )  # fmt: skip
