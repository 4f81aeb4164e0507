"""Merge the telemetry records of a micro-batch into one record per model."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.sketch_cells import CELLS
from autoscaler.estimate.span_to_seconds import split_into_seconds
from topics.checks import MAX_COUNT
from topics.demand import Demand, DemandSecond, GatewayState
from topics.telemetry import MOST_PER_S
from topics.telemetry_columns import (
    AGE_MS,
    IN_FLIGHT,
    LEAVING,
    ROUTE_GENERATION,
    TelemetryBatch,
    cells_text,
)


def merged(
    partition: int, offsets: tuple[int, int], records: TelemetryBatch, log_ms: NDArray[np.int64]
) -> list[Demand]:
    """Merge `records` of `partition` into one record per model.

    offsets: first and last offset that they cover. log_ms: log time of each record (`of_append`);
    all are in one second. Sums are limited to the maximum of a record, so no gateway can make the
    merged record invalid.
    """
    ends_ms = np.maximum(0, log_ms - records.numbers[:, AGE_MS])
    words: dict[str, dict[str, GatewayState]] = {}
    rows = zip(records.names, records.numbers.tolist(), ends_ms.tolist(), strict=True)
    for (model, gateway, boot), row, end_ms in rows:
        of = words.setdefault(model, {})
        known = of.get(gateway)
        active = bool(row[0] or row[1] or row[IN_FLIGHT])
        if known is None or _supersedes(known, boot, end_ms, bool(row[LEAVING])):
            of[gateway] = GatewayState(
                gateway, boot, end_ms, row[IN_FLIGHT], row[ROUTE_GENERATION],
                active or (known is not None and known.active), bool(row[LEAVING]),
            )  # fmt: skip
    kinds: dict[str, Counter[str]] = {}
    for at, said in records.kinds.items():
        kinds.setdefault(records.names[at][0], Counter()).update(dict(said))
    models = list(words)
    seconds: dict[str, list[DemandSecond]] = {model: [] for model in models}
    number = {model: at for at, model in enumerate(models)}
    owners = np.array([number[name[0]] for name in records.names], np.int64)
    found = split_into_seconds(owners, ends_ms, records.numbers, records.cells)
    sketches = dict(found.sketches)
    capped = np.minimum(found.counts, MOST_PER_S).tolist()
    for second, owner, counted in zip(
        found.seconds.tolist(), found.models.tolist(), capped, strict=True
    ):
        if second < 0:
            continue
        text = ""
        if second in sketches:
            cells, seen = sketches[second]
            own = slice(*cells.searchsorted((owner * CELLS, (owner + 1) * CELLS)).tolist())
            text = cells_text(cells[own] % CELLS, seen[own])
        seconds[models[owner]].append(DemandSecond(second * 1000, tuple(counted), text))
    return [
        Demand(
            model,
            partition,
            int(log_ms[0]) // 1000,
            tuple(seconds[model]),
            tuple(word for _, word in sorted(words[model].items())),
            {kind: min(n, MAX_COUNT) for kind, n in sorted(kinds.get(model, {}).items())},
            *offsets,
        )
        for model in sorted(seconds)
    ]


def _supersedes(known: GatewayState, boot: str, end_ms: int, leaving: bool) -> bool:
    """Whether a record with these values is later than `known`. A sign-off (`leaving`) is the last
    record of its boot, even if others are dated a little later."""
    if boot == known.boot and leaving != known.leaving:
        return leaving
    return end_ms >= known.end_ms
