"""Sketches of all models over time, and their sums over sliding windows.

Owns how finely the past is kept: every second of the last minutes, blocks of 30 s before. So a
window of up to two minutes is exact to the second; a longer one begins on a whole block, up to 30 s
early. Knows models by number, and neither who reported nor any clock.
"""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoscaler.estimate.sketch_cells import CELLS, Kept, together
from autoscaler.performance.numba_decorators import compiled
from topics.sketch import HIGHEST, LOWEST, WIDTH, middle_ms
from topics.telemetry import SKETCHES

FINE_S = 120
BLOCK_S = 30
_LAG_S = 60
"""So long ago a window may have been asked for last, and go on from there."""
_MIDDLES = [middle_ms(bucket) for bucket in range(LOWEST, HIGHEST + 1)]

Sketch: TypeAlias = Mapping[int, int]
"""Counts by bucket."""


class SeenSketch(Mapping[int, int]):
    """Sketch number `at` of a window (see `Seen`), which is read when somebody asks: every tick
    has some of each model, and few of them are read."""

    __slots__ = ("_at", "_found", "_seen")

    def __init__(self, seen: Seen, at: int) -> None:
        self._seen = seen
        self._at = at
        self._found: dict[int, int] | None = None

    def _read(self) -> dict[int, int]:
        if self._found is None:
            self._found = self._seen.read(self._at)
        return self._found

    def __getitem__(self, bucket: int) -> int:
        return self._read()[bucket]

    def __iter__(self) -> Iterator[int]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())

    def items(self) -> ItemsView[int, int]:
        """As of the dict, without a look for each bucket."""
        return self._read().items()

    def numbers(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Buckets, rising, and their counts, (n,) each."""
        return self._seen.numbers(self._at)


def numbers(sketch: Sketch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Buckets of `sketch`, rising, and their counts, (n,) each."""
    if isinstance(sketch, SeenSketch):
        return sketch.numbers()
    found = np.array(sorted(sketch.items()), np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


class Seen:
    """The cells that are not empty of a window, and their counts. Sketches are numbered by model,
    then in the order of SKETCHES."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        (self._cells,) = (counts != 0).nonzero()  # of flags it is several times faster
        self._counts = counts[self._cells]
        self._upto = np.zeros(len(self._cells) + 1, np.int64)
        self._counts.cumsum(out=self._upto[1:])
        self._bounds = self._cells.searchsorted(np.arange(0, len(counts) + 1, WIDTH))

    def sketch(self, name: str, model: int) -> SeenSketch:
        """The sketch called `name`, one of SKETCHES, of a model."""
        return SeenSketch(self, model * len(SKETCHES) + SKETCHES.index(name))

    def read(self, at: int) -> dict[int, int]:
        """Sketch number `at`."""
        buckets, counts = self.numbers(at)
        return dict(zip(buckets.tolist(), counts.tolist(), strict=True))

    def numbers(self, at: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Buckets of sketch number `at`, rising, and their counts, (n,) each."""
        part = slice(*self._bounds[at : at + 2].tolist())
        return self._cells[part] % WIDTH + LOWEST, self._counts[part]

    def quantiles_ms(
        self, names: Sequence[str], models: NDArray[np.int64], q: float
    ) -> list[tuple[float | None, ...]]:
        """Of each of `models` the q-quantile of each of the sketches called `names`; None where
        nothing was seen."""
        places = np.array([SKETCHES.index(name) for name in names])
        at = (models[:, None] * len(SKETCHES) + places).ravel()
        found = [
            _MIDDLES[cell % WIDTH] if cell >= 0 else None
            for cell in _quantiles(self._cells, self._upto, self._bounds, at, q).tolist()
        ]
        wide = len(names)
        return [tuple(found[first : first + wide]) for first in range(0, len(found), wide)]


@dataclass(slots=True)
class Sum:
    """Everything from `start_s` until before `end_s`. counts: of all cells of all models."""

    start_s: int
    end_s: int
    counts: NDArray[np.int64]
    _seen: Seen | None = None

    def count_in(self, kept: Kept) -> None:
        """Count `kept` in."""
        _add(self.counts, *kept, 1)
        self._seen = None

    def count_out(self, kept: Kept) -> None:
        """Count `kept` out."""
        _add(self.counts, *kept, -1)
        self._seen = None

    def room_for(self, models: int) -> None:
        """Numbers of models are below `models` from now on."""
        self.counts = np.append(self.counts, np.zeros(models * CELLS - len(self.counts), np.int64))
        self._seen = None

    @property
    def seen(self) -> Seen:
        """What is in it now."""
        if self._seen is None:
            self._seen = Seen(self.counts)
        return self._seen


@dataclass(slots=True)
class Sketches:
    """The last `horizon_s` seconds. fine: by second; coarse: by the second a block begins with."""

    horizon_s: int
    models: int = 1
    fine: dict[int, Kept] = field(default_factory=dict)
    coarse: dict[int, Kept] = field(default_factory=dict)
    windows: dict[int, Sum] = field(default_factory=dict)
    _merged_s: int = 0

    def room_for(self, models: int) -> None:
        """Numbers of models are below `models` from now on."""
        if models > self.models:
            self.models = models + models // 8
            for one in self.windows.values():
                one.room_for(self.models)

    @property
    def oldest_s(self) -> float:
        """Nothing of the seconds before is kept."""
        return min((*self.coarse, *self.fine), default=math.inf)

    def add(self, second: int, kept: Kept) -> None:
        """Count what was seen in `second` in."""
        for one in self.windows.values():
            if one.start_s <= second < one.end_s:
                one.count_in(kept)
        if second < self._merged_s:
            _keep(self.coarse, second - second % BLOCK_S, kept)
        else:
            _keep(self.fine, second, kept)

    def window(self, window_s: int, now_s: int) -> Seen:
        """What was seen in the `window_s` seconds before `now_s`."""
        start_s = now_s - window_s
        if window_s > FINE_S:
            start_s -= start_s % BLOCK_S
        one = self.windows.get(window_s)
        if one is None or not 0 <= now_s - one.end_s <= _LAG_S:
            nothing = np.zeros(self.models * CELLS, np.int64)
            one = self.windows[window_s] = Sum(start_s, start_s, nothing)
        if (one.start_s, one.end_s) != (start_s, now_s):
            for kept in self._between(one.end_s, now_s):
                one.count_in(kept)
            for kept in self._between(one.start_s, start_s):
                one.count_out(kept)
            one.start_s, one.end_s = start_s, now_s
        return one.seen

    def merge(self, now_s: int) -> None:
        """Keep only blocks of what no short window reaches at `now_s`, and forget what none does.

        Time never goes back.
        """
        fine_s = now_s - FINE_S - _LAG_S
        fine_s -= fine_s % BLOCK_S
        if fine_s == self._merged_s:
            return
        self._merged_s = fine_s
        old: dict[int, list[Kept]] = {}
        for second in sorted(second for second in self.fine if second < fine_s):
            old.setdefault(second - second % BLOCK_S, []).append(self.fine.pop(second))
        for block, kept in old.items():
            _keep(self.coarse, block, *kept)
        oldest = now_s - self.horizon_s - _LAG_S - BLOCK_S
        for block in [block for block in self.coarse if block < oldest]:
            del self.coarse[block]

    def _between(self, start_s: int, end_s: int) -> Iterator[Kept]:
        """What is kept of the seconds from `start_s` until before `end_s`."""
        if self.fine:
            for second in range(start_s, end_s):
                if second in self.fine:
                    yield self.fine[second]
        for block in range(start_s + -start_s % BLOCK_S, end_s, BLOCK_S):
            if block in self.coarse:
                yield self.coarse[block]


def _keep(all_: dict[int, Kept], key: int, *kept: Kept) -> None:
    known = [all_[key]] if key in all_ else []
    all_[key] = together([*known, *kept]) if known or len(kept) > 1 else kept[0]


@compiled
def _add(
    sums: NDArray[np.int64], cells: NDArray[np.uint32], counts: NDArray[np.uint32], times: int
) -> None:
    """Count `counts` of `cells` in as often as `times` says."""
    for at in range(len(cells)):
        sums[cells[at]] += times * np.int64(counts[at])


@compiled
def _quantiles(
    cells: NDArray[np.int64],
    upto: NDArray[np.int64],
    bounds: NDArray[np.int64],
    sketches: NDArray[np.int64],
    q: float,
) -> NDArray[np.int64]:
    """The cell that the q-quantile of each of `sketches` is in, -1 where it is empty. cells, upto,
    bounds: of `Seen`."""
    found = np.full(len(sketches), -1)
    for number, at in enumerate(sketches):
        before, seen = upto[bounds[at]], upto[bounds[at + 1]] - upto[bounds[at]]
        if seen:
            rank = before + max(1, math.ceil(q * seen))
            found[number] = cells[np.searchsorted(upto, rank) - 1]
    return found
