"""Merging the records of a partition of `telemetry`, second by second of the broker's clock.

Owns what belongs together: records that the broker appended to one partition within one second. It
follows from the log alone, so whoever merges them makes the same record, and nothing is counted
twice when a worker is replaced. Knows nothing of Kafka clients.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from autoscaler.demand.seconds import WIDTH, Cells, Span, spread
from topics.demand import Demand, DemandSecond, GatewayWord
from topics.reported import Reported
from topics.sketch import LOWEST, pack, to_text
from topics.telemetry import SKETCHES


@dataclass(slots=True)
class Batch:
    """What one partition got in the second `appended_s`; last_s: monotonic s of the last record."""

    partition: int
    appended_s: int
    last_s: float = 0.0
    spans: dict[str, list[Span]] = field(default_factory=dict)
    words: dict[str, dict[str, GatewayWord]] = field(default_factory=dict)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, record: Reported, append_ms: int, now_s: float) -> None:
        """A record of this second."""
        self.last_s = now_s
        end_ms = max(0, append_ms - record.age_ms)
        span = (end_ms, record.span_ms, record.values, record.sketches)
        self.spans.setdefault(record.model, []).append(span)
        if record.kinds:
            self.kinds.setdefault(record.model, Counter()).update(dict(record.kinds))
        of = self.words.setdefault(record.model, {})
        known = of.get(record.gateway)
        active = bool(record.values[0] or record.values[1] or record.in_flight)
        if known is None or end_ms >= known.end_ms:
            of[record.gateway] = GatewayWord(
                record.gateway, record.boot, end_ms, record.in_flight, record.route_generation,
                active or (known is not None and known.active), record.leaving,
            )  # fmt: skip

    def merged(self) -> list[Demand]:
        """One record per model."""
        return [
            Demand(
                model,
                self.partition,
                self.appended_s,
                tuple(
                    DemandSecond(second * 1000, values, _texts(cells))
                    for second, values, cells in sorted(spread(spans), key=lambda found: found[0])
                    if second >= 0
                ),
                tuple(word for _, word in sorted(self.words[model].items())),
                dict(sorted(self.kinds.get(model, {}).items())),
            )
            for model, spans in sorted(self.spans.items())
        ]


def _texts(cells: Cells) -> tuple[str, ...]:
    places, buckets = np.divmod(cells["cell"].astype(np.int64), WIDTH)
    found = []
    for place in range(len(SKETCHES)):
        here = places == place
        counts = cells["count"][here].tolist()
        sketch = dict(zip((buckets[here] + LOWEST).tolist(), counts, strict=True))
        found.append(to_text(pack(sketch)))
    return tuple(found)
