"""Merging the records of a partition of `telemetry`, second by second of the broker's clock.

Owns what belongs together: records that the broker appended to one partition within one second. It
follows from the log alone, so whoever merges them makes the same record, and nothing is counted
twice when a worker is replaced. Knows nothing of Kafka clients.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from autoscaler.demand.cells import Dense
from autoscaler.demand.seconds import Span, spread
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
    spans: list[Span] = field(default_factory=list)
    words: dict[str, dict[str, GatewayWord]] = field(default_factory=dict)
    kinds: dict[str, Counter[str]] = field(default_factory=dict)

    def add(self, record: Reported, append_ms: int, now_s: float) -> None:
        """A record of this second."""
        self.last_s = now_s
        end_ms = max(0, append_ms - record.age_ms)
        self.spans.append((record.model, end_ms, record.span_ms, record.values, record.sketches))
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
        seconds: dict[str, list[DemandSecond]] = {model: [] for model in self.words}
        for model, second, counts, dense in spread(self.spans):
            if second >= 0:
                found = DemandSecond(second * 1000, tuple(counts.tolist()), _texts(dense))
                seconds[model].append(found)
        return [
            Demand(
                model,
                self.partition,
                self.appended_s,
                tuple(seconds[model]),
                tuple(word for _, word in sorted(self.words[model].items())),
                dict(sorted(self.kinds.get(model, {}).items())),
            )
            for model in sorted(seconds)
        ]


def _texts(dense: Dense | None) -> tuple[str, ...]:
    if dense is None:
        return ("",) * len(SKETCHES)
    return tuple(
        to_text(pack({int(at) + LOWEST: int(counts[at]) for at in np.flatnonzero(counts)}))
        for counts in dense
    )
