"""Split the counts of telemetry records over the seconds that their spans cover."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.sketch_cells import CellCounts, merge_records
from autoscaler.performance.numba_decorators import compiled
from topics.telemetry import COUNTS
from topics.telemetry_columns import SPAN_MS

_COUNTS = len(COUNTS)


@dataclass(frozen=True, slots=True, eq=False)
class SecondCounts:
    """Counts of records per second and model.

    seconds, models (n,): ascending pairs (second, model) without duplicates. counts (n, COUNTS):
    counts of each pair. sketches: (second, cells of all models), ascending, only for seconds with
    cells.
    """

    seconds: NDArray[np.int64]
    models: NDArray[np.int64]
    counts: NDArray[np.int64]
    sketches: list[tuple[int, CellCounts]]


def split_into_seconds(
    models: NDArray[np.int64],
    ends_ms: NDArray[np.int64],
    numbers: NDArray[np.int64],
    cells: Sequence[bytes],
) -> SecondCounts:
    """Split records into counts per second and model.

    models: model index of each record; ends_ms: event times of the ends of their spans; numbers,
    cells: as in `TelemetryBatch`. Counts are split in proportion to time, rounded so that they add
    up exactly; sketches are counted in the last second. A span of 0 ms counts in the second before
    its end.
    """
    if not len(models):
        return SecondCounts(models, models, numbers[:, :_COUNTS], [])
    seconds, owners, totals, last = _by_second(models, ends_ms, numbers)
    return SecondCounts(seconds, owners, totals, _sketches(seconds, owners, last, cells))


@compiled
def _by_second(
    models: NDArray[np.int64], ends_ms: NDArray[np.int64], numbers: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Seconds, models and counts of each (second, model) pair, and for each record the index of the
    pair with its last second. Compiled, because every tick has a few records."""
    spans = np.maximum(1, numbers[:, SPAN_MS])
    starts = ends_ms - spans
    rows = int(((ends_ms - 1) // 1000 - starts // 1000 + 1).sum())
    # A row for each second that a span touches.
    seconds, owners = np.empty(rows, np.int64), np.empty(rows, np.int64)
    parts = np.empty((rows, _COUNTS), np.int64)
    last = np.empty(len(models), np.int64)
    row = 0
    for record in range(len(models)):
        before_ms = 0
        for second in range(starts[record] // 1000, (ends_ms[record] - 1) // 1000 + 1):
            until_ms = min((second + 1) * 1000, ends_ms[record]) - starts[record]
            seconds[row], owners[row] = second, models[record]
            for count in range(_COUNTS):
                seen = numbers[record, count]
                upto = seen * until_ms // spans[record]
                parts[row, count] = upto - seen * before_ms // spans[record]
            before_ms = until_ms
            row += 1
        last[record] = row - 1
    # Sum the rows that have equal second and model.
    order = ((seconds - seconds.min()) * (owners.max() + 1) + owners).argsort(kind="mergesort")
    pair_s, pair, pair_of = np.empty_like(seconds), np.empty_like(owners), np.empty_like(owners)
    totals = np.zeros_like(parts)
    at = -1
    for row in order:
        if at < 0 or seconds[row] != pair_s[at] or owners[row] != pair[at]:
            at += 1
            pair_s[at], pair[at] = seconds[row], owners[row]
        totals[at] += parts[row]
        pair_of[row] = at
    return pair_s[: at + 1], pair[: at + 1], totals[: at + 1], pair_of[last]


def _sketches(
    seconds: NDArray[np.int64],
    owners: NDArray[np.int64],
    last: NDArray[np.int64],
    cells: Sequence[bytes],
) -> list[tuple[int, CellCounts]]:
    """Sketch cells by second. seconds, owners: second and model of each pair; last: for each
    record, the pair with its last second."""
    (places, seen), cell = merge_records(cells, last, owners)
    (begins,) = np.append(True, seconds[1:] != seconds[:-1]).nonzero()
    bounds = cell[np.append(begins, len(seconds))].tolist()
    return [
        (second, (places[start:end].copy(), seen[start:end].copy()))
        for second, start, end in zip(
            seconds[begins].tolist(), bounds[:-1], bounds[1:], strict=True
        )
        if start < end
    ]
