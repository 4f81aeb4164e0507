"""Sketches of a second or a window: as arrays, and as the cells that are not empty.

Owns the two forms, and the merging of what many records say. Knows nothing of time.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.sketch import LOWEST, WIDTH, to_text
from topics.telemetry import SKETCHES

_CELLS = len(SKETCHES) * WIDTH
_CELL = np.dtype([("place", "<u2"), ("count", "<u4")])
_MOST = 2**32 - 1
_GROUPS_AT_ONCE = 16  # so that the arrays of one round stay in the processor's caches

Dense: TypeAlias = NDArray[np.int64]
"""(len(SKETCHES), WIDTH): counts of bucket - LOWEST of each sketch."""

Kept: TypeAlias = bytes
"""The cells that are not empty, each once: a place as of `topics.sketch` and a count, 6 bytes."""


def nothing() -> Dense:
    """Nothing seen."""
    return np.zeros((len(SKETCHES), WIDTH), np.int64)


def merged(wire: Sequence[bytes], group: NDArray[np.int64], groups: int) -> list[Kept]:
    """What the records of each group saw together. wire: the cells of each record, as `Reported`
    has them; group: the number of its group, rising. Places of unknown sketches are left out."""
    found: list[Kept] = []
    for first in range(0, groups, _GROUPS_AT_ONCE):
        last = min(groups, first + _GROUPS_AT_ONCE)
        start, end = group.searchsorted((first, last)).tolist()
        places, counts = np.frombuffer(b"".join(wire[start:end]), "<i2").reshape(-1, 2).T
        cells = np.array([len(one) for one in wire[start:end]], np.int64) // 4
        at = (group[start:end] - first).repeat(cells) * _CELLS + places
        if len(places) and places.max() >= _CELLS:
            known = places < _CELLS
            at, counts = at[known], counts[known]
        totals = np.bincount(at, counts, (last - first) * _CELLS)
        (seen,) = (totals != 0.0).nonzero()  # of flags it is several times faster
        kept = _packed(seen % _CELLS, totals[seen])
        upto = _CELL.itemsize * seen.searchsorted(np.arange(last - first + 1) * _CELLS)
        found += [kept[a:b] for a, b in pairwise(upto.tolist())]
    return found


def together(one: Kept, other: Kept) -> Kept:
    """What both saw."""
    cells = np.frombuffer(one + other, _CELL)
    totals = np.bincount(cells["place"], cells["count"])
    (seen,) = totals.nonzero()
    return _packed(seen, totals[seen])


def count_in(kept: Kept, into: Dense, sign: int = 1) -> None:
    """Count `kept` in (out with sign -1)."""
    cells = np.frombuffer(kept, _CELL)
    into.reshape(-1)[cells["place"]] += sign * cells["count"].astype(np.int64)


def text_of(kept: Kept) -> str:
    """`kept` as the wire has it."""
    cells = np.frombuffer(kept, _CELL)
    places = (cells["place"].astype(np.int64) + LOWEST).tolist()
    return to_text([dict(zip(places, cells["count"].tolist(), strict=True))])


def _packed(places: NDArray[np.intp], counts: NDArray[Any]) -> Kept:
    made = np.empty(len(places), _CELL)
    made["place"] = places
    made["count"] = np.minimum(counts, _MOST)
    return made.tobytes()
