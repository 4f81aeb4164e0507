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

from topics.sketch import HIGHEST, LOWEST, PAIR_BYTES, middle_ms
from topics.telemetry import COUNTS, SKETCHES

WIDTH = HIGHEST - LOWEST + 1
_CELL = np.dtype([("cell", "<u2"), ("count", "<u4")])
_MOST = 2**32 - 1
_ZEROS = (0,) * len(COUNTS)

_STARTS = np.arange(len(SKETCHES)) * WIDTH
_CELLS_OF = {name: slice(at * WIDTH, (at + 1) * WIDTH) for at, name in enumerate(SKETCHES)}

Sketch: TypeAlias = Mapping[int, int]
"""Counts by bucket."""

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


class DenseSketch(Mapping[int, int]):
    """A sketch as counts of all buckets. Its few that are not empty are looked for when somebody
    asks: every tick has one of each window, and few of them are read."""

    __slots__ = ("_counts", "_found")

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._counts = counts
        self._found: dict[int, int] | None = None

    def _read(self) -> dict[int, int]:
        if self._found is None:
            (at,) = self._counts.nonzero()
            counts = self._counts[at].tolist()
            self._found = dict(zip((at + LOWEST).tolist(), counts, strict=True))
        return self._found

    def __getitem__(self, bucket: int) -> int:
        return self._read()[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


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

    def sketch(self, name: str) -> DenseSketch:
        """The sketch called `name`, one of SKETCHES, as it is now."""
        return DenseSketch(self.dense[_CELLS_OF[name]].copy())

    def quantile_ms(self, name: str, q: float) -> float | None:
        """The q-quantile of the sketch called `name`; None where nothing was seen."""
        upto = self.dense[_CELLS_OF[name]].cumsum()
        total = int(upto[-1])
        if total == 0:
            return None
        rank = max(1, math.ceil(q * total))
        return middle_ms(int(upto.searchsorted(rank)) + LOWEST)


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
    firsts, lasts = starts // 1000, (ends - 1) // 1000
    touched = lasts - firsts + 1
    # A row for each second that a span touches.
    of = np.arange(len(spans)).repeat(touched)
    second = np.arange(len(of)) - (touched.cumsum() - touched - firsts)[of]
    until = np.minimum((second + 1) * 1000, ends[of]) - starts[of]
    upto = counts[of] * until[:, None] // lengths[of][:, None]
    part = upto.copy()
    part[1:] -= np.where((of[1:] == of[:-1])[:, None], upto[:-1], 0)
    seconds, at = np.unique(second, return_inverse=True)
    totals = np.zeros((len(seconds), counts.shape[1]), np.int64)
    np.add.at(totals, at, part)
    found: dict[int, list[Sketches]] = {}
    for number, span in zip(lasts.tolist(), spans, strict=True):
        if any(span[3]):
            found.setdefault(number, []).append(span[3])
    for number, total in zip(seconds.tolist(), totals.tolist(), strict=True):
        cells = _cells(found[number]) if number in found else _NOTHING
        yield number, tuple(total) if any(total) else _ZEROS, cells


def _cells(all_: Sequence[Sketches]) -> Cells:
    """The cells of several records' packed sketches together. A bucket that is none is the last."""
    columns = [b"".join(column) for column in zip(*all_, strict=True)]
    joined = b"".join(columns)
    if not joined:
        return _NOTHING
    pairs = np.frombuffer(joined, "<u2").reshape(-1, 2).astype(np.int64)
    starts = _STARTS.repeat([len(column) // PAIR_BYTES for column in columns])
    return _made(np.minimum(pairs[:, 0], WIDTH - 1) + starts, pairs[:, 1])


def _merged(all_: Sequence[Cells]) -> Cells:
    both = np.concatenate(all_)
    return _made(both["cell"].astype(np.int64), both["count"].astype(np.int64))


def _made(cells: NDArray[np.int64], counts: NDArray[np.int64]) -> Cells:
    dense = np.bincount(cells, counts)
    (at,) = dense.nonzero()
    made = np.empty(len(at), _CELL)
    made["cell"] = at
    made["count"] = np.minimum(dense[at], _MOST)
    return made
