"""Sketches of all models as non-empty cells, and the merging of such cells.

A cell's number is the model's index times CELLS plus the cell's position in the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.numba_decorators import compiled
from topics.sketch import WIDTH
from topics.telemetry import SKETCHES

CELLS = len(SKETCHES) * WIDTH
"""Number of cells of one model. Cell n has the place n % CELLS in the layout of `topics.sketch`."""
_MAX_COUNT = 2**32 - 1
"""Highest count of a cell: the largest unsigned number of 32 bits."""

CellCounts: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.uint32]]
"""(numbers of the non-empty cells, ascending and distinct; their counts)."""


def merge_records(
    wire: Sequence[bytes], group: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[CellCounts, NDArray[np.int64]]:
    """Merge the sketches of records by group; return the cells group by group, and the start of
    each group's cells.

    wire: cells of each record, of `TelemetryBatch`; group: group number of each record; owners: the
    model of each group. Positions of unknown sketches are ignored.
    """
    sizes = np.array([len(one) for one in wire], np.int64) // 4
    return _merge_records(np.frombuffer(b"".join(wire), np.int16), sizes, group, owners)


@compiled
def _merge_records(
    pairs: NDArray[np.int16],
    sizes: NDArray[np.int64],
    group: NDArray[np.int64],
    owners: NDArray[np.int64],
) -> tuple[CellCounts, NDArray[np.int64]]:
    """Compiled part of `merge_records`. pairs: positions and counts, alternating; sizes: number of
    pairs of each record."""
    most = min(len(pairs) // 2, len(owners) * CELLS)
    cells, counts = np.empty(most, np.uint32), np.empty(most, np.uint32)
    begins = np.zeros(len(owners) + 1, np.int64)
    seen = np.zeros(CELLS, np.int64)
    ends = sizes.cumsum()
    order = group.argsort(kind="mergesort")
    found = record = 0
    for number in range(len(owners)):
        first = record
        while record < len(order) and group[order[record]] == number:
            end = ends[order[record]]
            for at in range(end - sizes[order[record]], end):
                place = pairs[2 * at]
                if place < CELLS:
                    seen[place] += pairs[2 * at + 1]
            record += 1
        for place in range(CELLS if record > first else 0):
            if seen[place]:
                cells[found] = owners[number] * CELLS + place
                counts[found] = min(seen[place], _MAX_COUNT)
                seen[place] = 0
                found += 1
        begins[number + 1] = found
    return (cells[:found].copy(), counts[:found].copy()), begins


def merge_cells(kept: Sequence[CellCounts]) -> CellCounts:
    """The sum of all cell counts in `kept`."""
    cells, counts = _concatenate(kept)
    order = cells.argsort(kind="stable")  # a stable sort is fast for a few rising runs
    cells = cells[order]
    (first,) = np.append(True, cells[1:] != cells[:-1])[: len(cells)].nonzero()
    totals = np.add.reduceat(counts[order], first, dtype=np.int64) if len(cells) else counts
    return _cell_counts(cells[first], totals)


def _concatenate(kept: Sequence[CellCounts]) -> CellCounts:
    cells, counts = zip(*kept, strict=True) if kept else ((), ())
    none = np.zeros(0, np.uint32)
    return np.concatenate((none, *cells)), np.concatenate((none, *counts))


def _cell_counts(cells: NDArray[Any], counts: NDArray[Any]) -> CellCounts:
    return cells.astype(np.uint32), np.minimum(counts, _MAX_COUNT).astype(np.uint32)
