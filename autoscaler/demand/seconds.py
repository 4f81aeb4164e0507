"""How the spans of records fall on seconds.

Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from autoscaler.demand.cells import Kept, merged
from topics.reported import SPAN_MS
from topics.telemetry import COUNTS


def spread(
    models: NDArray[np.int64],
    ends_ms: NDArray[np.int64],
    numbers: NDArray[np.int64],
    cells: Sequence[bytes],
) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64], Kept]]:
    """(second, models, their counts, their sketches): what records say together, second by second.

    models: the number of each record's model; ends_ms: the event times of the ends of their spans;
    numbers and cells: as in `Reported`. Each second gets counts in proportion to time, rounded so
    that they add up exactly; sketches go to the last second. A span of 0 ms falls on the second
    before its end.
    """
    if not len(models):
        return
    counts = numbers[:, : len(COUNTS)]
    lengths = np.maximum(1, numbers[:, SPAN_MS])
    starts = ends_ms - lengths
    firsts, lasts = starts // 1000, (ends_ms - 1) // 1000
    touched = lasts - firsts + 1
    # A row for each second that a span touches.
    of = np.arange(len(models)).repeat(touched)
    ends = touched.cumsum()
    second = np.arange(len(of)) - (ends - touched - firsts)[of]
    until = np.minimum((second + 1) * 1000, ends_ms[of]) - starts[of]
    upto = counts[of] * until[:, None] // lengths[of][:, None]
    part = upto.copy()
    part[1:] -= np.where((of[1:] == of[:-1])[:, None], upto[:-1], 0)
    # Rows of the same second and model are added up.
    base_s, width = int(firsts.min()), int(models.max()) + 1
    row_keys = (second - base_s) * width + models[of]
    order = row_keys.argsort(kind="stable")
    keys, begins, sizes = np.unique(row_keys[order], return_index=True, return_counts=True)
    totals = np.add.reduceat(part[order], begins)
    group = np.empty(len(of), np.int64)
    group[order] = np.arange(len(keys)).repeat(sizes)
    # Sketches of the last row of each record.
    group = group[ends - 1]
    order = group.argsort(kind="stable")
    owners = keys % width
    (places, seen), cell = merged([cells[at] for at in order.tolist()], group[order], owners)
    seconds, begins = np.unique(keys // width, return_index=True)
    bounds = np.append(begins, len(keys))
    for number, start, end in zip(seconds.tolist(), bounds[:-1], bounds[1:], strict=True):
        groups, kept = slice(start, end), slice(cell[start], cell[end])
        yield (
            base_s + number,
            owners[groups],
            totals[groups],
            (places[kept].copy(), seen[kept].copy()),
        )
