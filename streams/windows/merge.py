"""Merging the records of a partition of `telemetry`, second by second of the broker's clock.

Owns what belongs together: records that the broker appended to one partition within one second. It
follows from the log alone, so whoever merges them makes the same record, and nothing is counted
twice when a worker is replaced. Knows nothing of Kafka clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from autoscaler.demand.cells import text_of
from autoscaler.demand.seconds import spread
from topics.checks import MAX_COUNT
from topics.demand import Demand, DemandSecond, GatewayWord
from topics.reported import Reported


def merged(
    partition: int, appended_s: int, records: Sequence[tuple[Reported, int]]
) -> list[Demand]:
    """One record per model, of all `records` (each with the ms it was appended at) that
    `partition` got in the second `appended_s`. Sums end at what a record may say, so no gateway
    makes one that nobody takes."""
    spans = [(record, max(0, append_ms - record.age_ms)) for record, append_ms in records]
    words: dict[str, dict[str, GatewayWord]] = {}
    kinds: dict[str, Counter[str]] = {}
    for record, end_ms in spans:
        if record.kinds:
            kinds.setdefault(record.model, Counter()).update(dict(record.kinds))
        of = words.setdefault(record.model, {})
        known = of.get(record.gateway)
        active = bool(record.values[0] or record.values[1] or record.in_flight)
        if known is None or end_ms >= known.end_ms:
            of[record.gateway] = GatewayWord(
                record.gateway, record.boot, end_ms, record.in_flight, record.route_generation,
                active or (known is not None and known.active), record.leaving,
            )  # fmt: skip
    seconds: dict[str, list[DemandSecond]] = {model: [] for model in words}
    for model, second, counts, sketches in spread(spans):
        if second >= 0:
            counted = tuple(np.minimum(counts, MAX_COUNT).tolist())
            found = DemandSecond(second * 1000, counted, cells=text_of(sketches))
            seconds[model].append(found)
    return [
        Demand(
            model,
            partition,
            appended_s,
            tuple(seconds[model]),
            tuple(word for _, word in sorted(words[model].items())),
            {kind: min(n, MAX_COUNT) for kind, n in sorted(kinds.get(model, {}).items())},
        )
        for model in sorted(seconds)
    ]
