"""Sketches of all models as the cells that are not empty, and the merging of what records say.

Owns how a cell of a model is numbered. Knows nothing of time.
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
"""Of a model: its places as of `topics.sketch`; the place of cell n is n % CELLS."""
_MOST = 2**32 - 1

Kept: TypeAlias = tuple[NDArray[np.uint32], NDArray[np.uint32]]
"""Cells that are not empty, each once and rising (a model's number times CELLS, plus the place),
and their counts."""


def merged(
    wire: Sequence[bytes], group: NDArray[np.int64], owners: NDArray[np.int64]
) -> tuple[Kept, NDArray[np.int64]]:
    """What the records of each group saw together, group by group, and where the cells of each
    group begin. wire: the cells of each record, as `Reported` has them; group: the number of its
    group; owners: the model of each group. Places of unknown sketches are left out."""
    sizes = np.array([len(one) for one in wire], np.int64) // 4
    return _merged(np.frombuffer(b"".join(wire), np.int16), sizes, group, owners)


@compiled
def _merged(
    pairs: NDArray[np.int16],
    sizes: NDArray[np.int64],
    group: NDArray[np.int64],
    owners: NDArray[np.int64],
) -> tuple[Kept, NDArray[np.int64]]:
    """pairs: places and counts in turn; sizes: how many of each record."""
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
                counts[found] = min(seen[place], _MOST)
                seen[place] = 0
                found += 1
        begins[number + 1] = found
    return (cells[:found].copy(), counts[:found].copy()), begins


def together(kept: Sequence[Kept]) -> Kept:
    """What all of them saw."""
    cells, counts = _joined(kept)
    order = cells.argsort(kind="stable")  # which is fast for a few rising runs
    cells = cells[order]
    (first,) = np.append(True, cells[1:] != cells[:-1])[: len(cells)].nonzero()
    totals = np.add.reduceat(counts[order], first, dtype=np.int64) if len(cells) else counts
    return _kept(cells[first], totals)


def _joined(kept: Sequence[Kept]) -> Kept:
    cells, counts = zip(*kept, strict=True) if kept else ((), ())
    none = np.zeros(0, np.uint32)
    return np.concatenate((none, *cells)), np.concatenate((none, *counts))


def _kept(cells: NDArray[Any], counts: NDArray[Any]) -> Kept:
    return cells.astype(np.uint32), np.minimum(counts, _MOST).astype(np.uint32)
