"""One second of one model, sums of seconds, and how a record's span falls on seconds.

Owns the counting. Knows nothing of clocks, lateness or duplicates (`windows` does). The sketches of
a second are one packed array, those of a window one dense one, so that what twenty gateways say of
a second is merged in one go.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from topics.sketch import HIGHEST, LOWEST, middle_ms
from topics.telemetry import COUNTS, SKETCHES

WIDTH = HIGHEST - LOWEST + 1
_CELL = np.dtype([("cell", "<u2"), ("count", "<u4")])
_MOST = 2**32 - 1
_ZEROS = (0,) * len(COUNTS)

Sketch = Mapping[int, int]

Values: TypeAlias = tuple[int, ...]
"""Counts of COUNTS."""

Sketches: TypeAlias = tuple[bytes, ...]
"""Packed sketches of SKETCHES."""

Span: TypeAlias = tuple[int, int, Values, Sketches]
"""What one record says: event time of its end, its length (both ms), counts and sketches."""

Cells: TypeAlias = NDArray[Any]
"""Cells that are not empty, each once: cell = WIDTH x (place in SKETCHES) + bucket - LOWEST."""

_NOTHING = np.empty(0, _CELL)


@dataclass(slots=True)
class Second:
    """All that was seen in one second. packed: its cells; an idle second shares the empty ones."""

    values: Values = _ZEROS
    packed: bytes = b""

    @property
    def cells(self) -> Cells:
        """Its sketches."""
        return np.frombuffer(self.packed, _CELL)

    def add(self, values: Values, cells: Cells) -> None:
        """Count these in."""
        if values != _ZEROS:
            old = self.values
            new = tuple([o + n for o, n in zip(old, values, strict=True)])
            self.values = values if old is _ZEROS else new
        if len(cells):
            both = _merged([self.cells, cells]) if self.packed else cells
            self.packed = both.tobytes()


@dataclass(slots=True)
class Sums:
    """Running sums of the seconds before `end_s`. covered_s: seconds with any report. dense: of
    all sketches, cell by cell."""

    end_s: int
    covered_s: int = 0
    values: Values = _ZEROS
    dense: NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(WIDTH * len(SKETCHES), np.int64)
    )

    def add(self, values: Values, cells: Cells, sign: int = 1) -> None:
        """Count these in, or out with sign -1."""
        if values is not _ZEROS:
            self.values = tuple([o + sign * n for o, n in zip(self.values, values, strict=True)])
        if len(cells):
            self.dense[cells["cell"]] += sign * cells["count"].astype(np.int64)

    def enter(self, bucket: Second) -> None:
        """A second comes into the window."""
        self.covered_s += 1
        self.add(bucket.values, bucket.cells)

    def leave(self, bucket: Second) -> None:
        """A second falls out of the window."""
        self.covered_s -= 1
        self.add(bucket.values, bucket.cells, -1)

    def sketch(self, name: str) -> dict[int, int]:
        """The running sketch called `name`, one of SKETCHES."""
        counts = self._of(name)
        at = np.flatnonzero(counts)
        return dict(zip((at + LOWEST).tolist(), counts[at].tolist(), strict=True))

    def quantile_ms(self, name: str, q: float) -> float | None:
        """The q-quantile of the sketch called `name`; None where nothing was seen."""
        upto = self._of(name).cumsum()
        total = int(upto[-1])
        if total == 0:
            return None
        rank = max(1, math.ceil(q * total))
        return middle_ms(int(np.searchsorted(upto, rank)) + LOWEST)

    def _of(self, name: str) -> NDArray[np.int64]:
        start = SKETCHES.index(name) * WIDTH
        return self.dense[start : start + WIDTH]


def spread(spans: Sequence[Span]) -> Iterator[tuple[int, Values, Cells]]:
    """What `spans` say together of each second that they touch.

    Each second gets counts in proportion to time, rounded so that they add up exactly; sketches go
    to the last second. A span of 0 ms falls on the second before its end.
    """
    if len(spans) == 1:
        end_ms, span_ms, values, packed = spans[0]
        second = (end_ms - 1) // 1000
        if (end_ms - max(1, span_ms)) // 1000 == second:  # one gateway, whole seconds: no arrays
            yield second, values if any(values) else _ZEROS, _cells([packed])
            return
    counts = np.array([span[2] for span in spans], np.int64)
    ends = np.array([span[0] for span in spans], np.int64)
    lengths = np.maximum(1, np.array([span[1] for span in spans], np.int64))
    starts = ends - lengths
    seconds, lasts = starts // 1000, (ends - 1) // 1000
    totals: dict[int, NDArray[np.int64]] = {}
    done = np.zeros_like(counts)
    open_ = np.ones(len(spans), bool)
    while open_.any():
        until = np.minimum((seconds + 1) * 1000, ends) - starts
        upto = counts * until[:, None] // lengths[:, None]
        for second in np.unique(seconds[open_]).tolist():
            here = open_ & (seconds == second)
            part = (upto[here] - done[here]).sum(axis=0)
            totals[second] = totals.get(second, 0) + part
        done = upto
        open_ &= seconds < lasts
        seconds = seconds + 1
    found: dict[int, list[Sketches]] = {}
    for second, span in zip(lasts.tolist(), spans, strict=True):
        if any(span[3]):
            found.setdefault(second, []).append(span[3])
    for second, total in totals.items():
        cells = _cells(found[second]) if second in found else _NOTHING
        values = tuple(total.tolist())
        yield second, values if any(values) else _ZEROS, cells


def _cells(all_: Sequence[Sketches]) -> Cells:
    """The cells of several records' packed sketches together. A bucket that is none is the last."""
    found = []
    for place, packed in enumerate(zip(*all_, strict=True)):
        joined = b"".join(packed)
        if joined:
            pairs = np.frombuffer(joined, "<u2").reshape(-1, 2).astype(np.int64)
            found.append((np.minimum(pairs[:, 0], WIDTH - 1) + place * WIDTH, pairs[:, 1]))
    if not found:
        return _NOTHING
    cells, counts = (np.concatenate(column) for column in zip(*found, strict=True))
    return _made(cells, counts)


def _merged(all_: Sequence[Cells]) -> Cells:
    both = np.concatenate(all_)
    return _made(both["cell"].astype(np.int64), both["count"].astype(np.int64))


def _made(cells: NDArray[np.int64], counts: NDArray[np.int64]) -> Cells:
    dense = np.bincount(cells, counts)
    at = np.flatnonzero(dense)
    made = np.empty(len(at), _CELL)
    made["cell"] = at
    made["count"] = np.minimum(dense[at], _MOST)
    return made
