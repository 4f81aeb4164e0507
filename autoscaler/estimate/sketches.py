"""Sketches of all models over time, and their sums over sliding windows.

The last minutes are kept per second, older data in blocks of 30 s. So a window of up to two minutes
is exact, and a longer window begins up to 30 s early, at a block border. Models are identified by
index.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.sketch_cells import CELLS, CellCounts, merge_cells
from autoscaler.performance.numba_decorators import compiled
from topics.sketch import HIGHEST, LOWEST, WIDTH, bucket_value_ms
from topics.telemetry import SKETCHES

FINE_S = 120
"""Seconds for which sketches of single seconds are kept, the default local window."""
BLOCK_S = 30
"""Seconds of one coarse sketch, which limits the memory of the long window."""
_MAX_RESUME_S = 60
"""The sum of a window is updated if its last read was at most this long ago; otherwise it is
computed again."""
_MIDDLES = [bucket_value_ms(bucket) for bucket in range(LOWEST, HIGHEST + 1)]

Sketch: TypeAlias = Mapping[int, int]
"""Counts by bucket."""


class WindowSketch(Mapping[int, int]):
    """Sketch number `at` of a `SketchSnapshot`. Its cells are read at first access, because a tick
    uses few of its sketches."""

    __slots__ = ("_at", "_buckets", "_snapshot")

    def __init__(self, seen: SketchSnapshot, at: int) -> None:
        self._snapshot = seen
        self._at = at
        self._buckets: dict[int, int] | None = None

    def _read(self) -> dict[int, int]:
        if self._buckets is None:
            self._buckets = self._snapshot.read_sketch(self._at)
        return self._buckets

    def __getitem__(self, bucket: int) -> int:
        return self._read()[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def items(self) -> ItemsView[int, int]:
        """The (bucket, count) items of the sketch, without a lookup per bucket."""
        return self._read().items()

    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Buckets, rising, and their counts, (n,) each."""
        return self._snapshot.numbers(self._at)


def bucket_counts(sketch: Sketch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buckets of `sketch`, rising, and their counts, (n,) each."""
    if isinstance(sketch, WindowSketch):
        return sketch.numbers()
    found = np.array(sorted(sketch.items()), np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


class SketchSnapshot:
    """The non-empty cells of a window, and their counts. Sketches are numbered by model, then in
    the order of SKETCHES."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        (self._cells,) = (counts != 0).nonzero()  # `nonzero` is faster on booleans
        self._counts = counts[self._cells]
        self._cumulative = np.zeros(len(self._cells) + 1, np.int64)
        self._counts.cumsum(out=self._cumulative[1:])
        self._bounds = self._cells.searchsorted(np.arange(0, len(counts) + 1, WIDTH))

    def sketch(self, name: str, model: int) -> WindowSketch:
        """The sketch `name` (one of SKETCHES) of the model with index `model`."""
        return WindowSketch(self, model * len(SKETCHES) + SKETCHES.index(name))

    def read_sketch(self, at: int) -> dict[int, int]:
        """Counts by bucket of the sketch with number `at`."""
        buckets, counts = self.numbers(at)
        return dict(zip(buckets.tolist(), counts.tolist(), strict=True))

    def numbers(self, at: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Buckets of sketch number `at`, rising, and their counts, (n,) each."""
        part = slice(*self._bounds[at : at + 2].tolist())
        return self._cells[part] % WIDTH + LOWEST, self._counts[part]

    def quantiles_ms(
        self, names: Sequence[str], models: NDArray[np.int64], q: float
    ) -> list[tuple[float | None, ...]]:
        """The q-quantiles of the sketches called `names`, for each of `models`; None for an empty
        sketch."""
        places = np.array([SKETCHES.index(name) for name in names])
        at = (models[:, None] * len(SKETCHES) + places).ravel()
        found = [
            _MIDDLES[cell % WIDTH] if cell >= 0 else None
            for cell in _quantiles(self._cells, self._cumulative, self._bounds, at, q).tolist()
        ]
        wide = len(names)
        return [tuple(found[first : first + wide]) for first in range(0, len(found), wide)]


@dataclass(slots=True)
class SlidingSum:
    """The sum of cells from second `start_s` until before `end_s`. counts: counts of all cells of
    all models."""

    start_s: int
    end_s: int
    counts: NDArray[np.int64]
    _snapshot: SketchSnapshot | None = None

    def add(self, kept: CellCounts) -> None:
        """Add the cells `kept` to the sum."""
        _add(self.counts, *kept, 1)
        self._snapshot = None

    def subtract(self, kept: CellCounts) -> None:
        """Subtract the cells `kept` from the sum."""
        _add(self.counts, *kept, -1)
        self._snapshot = None

    def reserve(self, models: int) -> None:
        """Make room for model indices below `models`."""
        self.counts = np.append(self.counts, np.zeros(models * CELLS - len(self.counts), np.int64))
        self._snapshot = None

    @property
    def snapshot(self) -> SketchSnapshot:
        """The current cells. A returned snapshot never changes."""
        if self._snapshot is None:
            self._snapshot = SketchSnapshot(self.counts)
        return self._snapshot


@dataclass(slots=True)
class SketchStore:
    """Sketches of the last `horizon_s` seconds. fine: cells by second; coarse: cells by the first
    second of a block."""

    horizon_s: int
    models: int = 1
    fine: dict[int, CellCounts] = field(default_factory=dict)
    coarse: dict[int, CellCounts] = field(default_factory=dict)
    sums: dict[int, SlidingSum] = field(default_factory=dict)
    _compacted_until_s: int = 0

    def reserve(self, models: int) -> None:
        """Make room for model indices below `models`."""
        if models > self.models:
            self.models = models + models // 8
            for one in self.sums.values():
                one.reserve(self.models)

    @property
    def oldest_s(self) -> float:
        """The oldest second with data; infinite without data."""
        return min((*self.coarse, *self.fine), default=math.inf)

    def add(self, second: int, kept: CellCounts) -> None:
        """Add `kept`, the cells of `second`."""
        for one in self.sums.values():
            if one.start_s <= second < one.end_s:
                one.add(kept)
        if second < self._compacted_until_s:
            _store(self.coarse, second - second % BLOCK_S, kept)
        else:
            _store(self.fine, second, kept)

    def window(self, window_s: int, now_s: int) -> SketchSnapshot:
        """The cells of the `window_s` seconds before `now_s`."""
        start_s = now_s - window_s
        if window_s > FINE_S:
            start_s -= start_s % BLOCK_S
        one = self.sums.get(window_s)
        if one is None or not 0 <= now_s - one.end_s <= _MAX_RESUME_S:
            nothing = np.zeros(self.models * CELLS, np.int64)
            one = self.sums[window_s] = SlidingSum(start_s, start_s, nothing)
        if (one.start_s, one.end_s) != (start_s, now_s):
            for kept in self._between(one.end_s, now_s):
                one.add(kept)
            for kept in self._between(one.start_s, start_s):
                one.subtract(kept)
            one.start_s, one.end_s = start_s, now_s
        return one.snapshot

    def compact(self, now_s: int) -> None:
        """Merge the seconds that no short window needs into blocks, and drop blocks beyond the
        horizon.

        `now_s` must never decrease.
        """
        fine_s = now_s - FINE_S - _MAX_RESUME_S
        fine_s -= fine_s % BLOCK_S
        if fine_s == self._compacted_until_s:
            return
        self._compacted_until_s = fine_s
        old: dict[int, list[CellCounts]] = {}
        for second in sorted(second for second in self.fine if second < fine_s):
            old.setdefault(second - second % BLOCK_S, []).append(self.fine.pop(second))
        for block, kept in old.items():
            _store(self.coarse, block, *kept)
        oldest = now_s - self.horizon_s - _MAX_RESUME_S - BLOCK_S
        for block in [block for block in self.coarse if block < oldest]:
            del self.coarse[block]

    def _between(self, start_s: int, end_s: int) -> Iterator[CellCounts]:
        """Cells of the seconds from `start_s` until before `end_s`."""
        if self.fine:
            for second in range(start_s, end_s):
                if second in self.fine:
                    yield self.fine[second]
        for block in range(start_s + -start_s % BLOCK_S, end_s, BLOCK_S):
            if block in self.coarse:
                yield self.coarse[block]


def _store(all_: dict[int, CellCounts], key: int, *kept: CellCounts) -> None:
    known = [all_[key]] if key in all_ else []
    all_[key] = merge_cells([*known, *kept]) if known or len(kept) > 1 else kept[0]


@compiled
def _add(
    sums: NDArray[np.int64], cells: NDArray[np.uint32], counts: NDArray[np.uint32], times: int
) -> None:
    """Add `counts` of `cells` to `sums`, multiplied by `times`."""
    for at in range(len(cells)):
        sums[cells[at]] += times * np.int64(counts[at])


@compiled
def _quantiles(
    cells: NDArray[np.int64],
    cumulative: NDArray[np.int64],
    bounds: NDArray[np.int64],
    sketches: NDArray[np.int64],
    q: float,
) -> NDArray[np.int64]:
    """The cell of the q-quantile of each of `sketches`; -1 for an empty sketch. cells, cumulative,
    bounds: fields of `SketchSnapshot`."""
    found = np.full(len(sketches), -1)
    for number, at in enumerate(sketches):
        before, seen = cumulative[bounds[at]], cumulative[bounds[at + 1]] - cumulative[bounds[at]]
        if seen:
            rank = before + max(1, math.ceil(q * seen))
            found[number] = cells[np.searchsorted(cumulative, rank) - 1]
    return found
