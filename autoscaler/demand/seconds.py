"""How the spans of records fall on seconds.

Knows nothing of clocks, lateness or duplicates (`windows` does).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoscaler.demand.cells import Kept, merged
from topics.reported import SPAN_MS
from topics.telemetry import COUNTS


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """What records say together. seconds, models, (n,): rising, each pair once; counts: of each,
    (n, COUNTS); sketches: of all models, by rising second, where there are any."""

    seconds: NDArray[np.int64]
    models: NDArray[np.int64]
    counts: NDArray[np.int64]
    sketches: list[tuple[int, Kept]]


def spread(
    models: NDArray[np.int64],
    ends_ms: NDArray[np.int64],
    numbers: NDArray[np.int64],
    cells: Sequence[bytes],
) -> Spread:
    """What records say together, second by second.

    models: the number of each record's model; ends_ms: the event times of the ends of their spans;
    numbers and cells: as in `Reported`. Each second gets counts in proportion to time, rounded so
    that they add up exactly; sketches go to the last second. A span of 0 ms falls on the second
    before its end.
    """
    counts = numbers[:, : len(COUNTS)]
    if not len(models):
        return Spread(models, models, counts, [])
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
    row_keys = row_keys[order]
    begins, runs = _runs(row_keys)
    keys, totals = row_keys[begins], np.add.reduceat(part[order], begins)
    group = np.empty(len(of), np.int64)
    group[order] = runs
    sketches = _sketches(keys, group[ends - 1], width, cells)
    told = [(base_s + second, kept) for second, kept in sketches]
    return Spread(base_s + keys // width, keys % width, totals, told)


def _sketches(
    keys: NDArray[np.int64], group: NDArray[np.int64], width: int, cells: Sequence[bytes]
) -> list[tuple[int, Kept]]:
    """Sketches by second. keys: second x width + model, rising; group: which of them the last
    second of each record is."""
    order = group.argsort(kind="stable")
    group = group[order]
    begins, runs = _runs(group)
    told = keys[group[begins]]
    wire = [cells[at] for at in order.tolist()]
    (places, seen), cell = merged(wire, runs, told % width)
    seconds = told // width
    begins, _ = _runs(seconds)
    bounds = cell[np.append(begins, len(told))].tolist()
    return [
        (second, (places[start:end].copy(), seen[start:end].copy()))
        for second, start, end in zip(
            seconds[begins].tolist(), bounds[:-1], bounds[1:], strict=True
        )
        if start < end
    ]


def _runs(rising: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where each run of equal numbers begins in `rising`, (n,), and the number of the run that each
    is in. Several times faster than `np.unique`, which sorts again."""
    first = np.empty(len(rising), np.bool_)
    first[0] = True
    np.not_equal(rising[1:], rising[:-1], out=first[1:])
    return first.nonzero()[0], first.cumsum() - 1
