"""Sketches of one model over time, and their sums over sliding windows.

Owns how finely the past is kept: every second of the last minutes, blocks of 30 s before. So a
window of up to two minutes is exact to the second; a longer one begins on a whole block, up to 30 s
early. Knows nothing of who reported, nor any clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from autoscaler.demand.cells import Dense, Kept, count_in, nothing, together
from topics.sketch import LOWEST, middle_ms
from topics.telemetry import SKETCHES

FINE_S = 120
BLOCK_S = 30
_LAG_S = 30

Sketch: TypeAlias = Mapping[int, int]
"""Counts by bucket."""


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
class Sum:
    """Everything from `start_s` until before `end_s`."""

    start_s: int
    end_s: int
    dense: Dense = field(default_factory=nothing)
    _shown: bool = False
    _quantiles: dict[tuple[str, float], float | None] = field(default_factory=dict)

    def count_in(self, kept: Kept, sign: int = 1) -> None:
        """Count `kept` in (out with sign -1). What was shown stays as it was."""
        if self._shown:
            self.dense, self._shown = self.dense.copy(), False
        self._quantiles.clear()
        count_in(kept, self.dense, sign)

    def sketch(self, name: str) -> DenseSketch:
        """The sketch called `name`, one of SKETCHES, as it is now."""
        self._shown = True
        return DenseSketch(self.dense[SKETCHES.index(name)])

    def quantile_ms(self, name: str, q: float) -> float | None:
        """The q-quantile of the sketch called `name`; None where nothing was seen."""
        if (name, q) not in self._quantiles:
            self._quantiles[name, q] = self._quantile_ms(name, q)
        return self._quantiles[name, q]

    def _quantile_ms(self, name: str, q: float) -> float | None:
        upto = self.dense[SKETCHES.index(name)].cumsum()
        total = int(upto[-1])
        if total == 0:
            return None
        rank = max(1, math.ceil(q * total))
        return middle_ms(int(upto.searchsorted(rank)) + LOWEST)


@dataclass(slots=True)
class Sketches:
    """The last `horizon_s` seconds. fine: by second; coarse: by the second a block begins with."""

    horizon_s: int
    fine: dict[int, Kept] = field(default_factory=dict)
    coarse: dict[int, Kept] = field(default_factory=dict)
    windows: dict[int, Sum] = field(default_factory=dict)
    _merged_s: int = 0

    def add(self, second: int, kept: Kept) -> None:
        """Count what was seen in `second` in."""
        for one in self.windows.values():
            if one.start_s <= second < one.end_s:
                one.count_in(kept)
        if second < self._merged_s:
            _keep(self.coarse, second - second % BLOCK_S, kept)
        else:
            _keep(self.fine, second, kept)

    def window(self, window_s: int, now_s: int) -> Sum:
        """The sum of the `window_s` seconds before `now_s`."""
        start_s = now_s - window_s
        if window_s > FINE_S:
            start_s -= start_s % BLOCK_S
        one = self.windows.get(window_s)
        if one is None or not 0 <= now_s - one.end_s <= _LAG_S:
            one = self.windows[window_s] = Sum(start_s, start_s)
        if (one.start_s, one.end_s) == (start_s, now_s):
            return one
        for kept in self._between(one.end_s, now_s):
            one.count_in(kept)
        for kept in self._between(one.start_s, start_s):
            one.count_in(kept, -1)
        one.start_s, one.end_s = start_s, now_s
        return one

    def merge(self, now_s: int) -> None:
        """Keep only blocks of what no short window reaches at `now_s`, and forget what none does.

        Time never goes back.
        """
        fine_s = now_s - FINE_S - _LAG_S
        fine_s -= fine_s % BLOCK_S
        if fine_s == self._merged_s:
            return
        self._merged_s = fine_s
        for second in [second for second in self.fine if second < fine_s]:
            _keep(self.coarse, second - second % BLOCK_S, self.fine.pop(second))
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


def _keep(all_: dict[int, Kept], key: int, kept: Kept) -> None:
    all_[key] = together(all_[key], kept) if key in all_ else kept
