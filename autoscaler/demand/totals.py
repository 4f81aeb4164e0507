"""Counts of one model over time: any span of seconds costs one subtraction.

Owns cumulative sums per second. A record that comes late changes the sums from its second on. Knows
nothing of who reported, nor any clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from topics.telemetry import COUNTS

BLOCK_S = 10
_LUMP_S = 120

Count = tuple[int, int]
"""(covered seconds, arrivals)."""

Blocks = tuple[Count, ...]
"""Counts of consecutive 10 s blocks that start at multiples of 10 s, oldest first."""


def _rows(count: int) -> NDArray[np.int64]:
    return np.zeros((count, 1 + len(COUNTS)), np.int64)


@dataclass(slots=True)
class Totals:
    """rows[i]: covered seconds and COUNTS of the i seconds from `base_s` on, the last `horizon_s`
    at least. seconds: how many there are; the last one is the newest that was reported."""

    horizon_s: int
    base_s: int = 0
    seconds: int = 0
    rows: NDArray[np.int64] = field(default_factory=lambda: _rows(32))
    _blocks: tuple[int, int, Blocks] = (0, 0, ())

    @property
    def end_s(self) -> int:
        """The second after the newest; 0 where nothing was reported."""
        return self.base_s + self.seconds

    def add(self, second: int, values: NDArray[np.int64]) -> None:
        """Count COUNTS of `second` in; what is older than the horizon is left out."""
        if not self.seconds:
            self.base_s = second
        if second < self.base_s:
            if self.end_s - second > self.horizon_s:
                return
            self._begin(second)
        elif second >= self.end_s:
            self._extend(second + 1)
        at = second - self.base_s + 1
        later = self.rows[at : self.seconds + 1]
        if later[0, 0] == self.rows[at - 1, 0]:
            later[:, 0] += 1
        later[:, 1:] += values
        if second < self._blocks[1] * BLOCK_S:
            self._blocks = (0, 0, ())

    def between(self, start_s: int, end_s: int) -> list[int]:
        """Covered seconds, and COUNTS, from `start_s` until before `end_s`."""
        found: list[int] = (self.rows[self._at(end_s)] - self.rows[self._at(start_s)]).tolist()
        return found

    def spans(self, end_s: int, spans_s: Sequence[int]) -> tuple[Count, ...]:
        """The counts of each span of `spans_s` before `end_s`."""
        return self._counts(self._at(end_s), self._ats(end_s - np.array(spans_s)))

    def whole_blocks(self, now_s: int, window_s: int) -> Blocks:
        """The whole blocks of the `window_s` seconds before `now_s`; (0, 0) for unseen ones."""
        first, end = -(-(now_s - window_s) // BLOCK_S), now_s // BLOCK_S
        if self._blocks[:2] != (first, end):
            edges = self._ats(np.arange(first, end + 1) * BLOCK_S)
            self._blocks = first, end, self._counts(edges[1:], edges[:-1])
        return self._blocks[2]

    def _counts(self, ends: NDArray[np.int64] | int, starts: NDArray[np.int64]) -> Blocks:
        counts = (self.rows[ends, :2] - self.rows[starts, :2]).T
        return tuple(zip(*counts.tolist(), strict=True))

    def _at(self, second: int) -> int:
        return min(max(second - self.base_s, 0), self.seconds)

    def _ats(self, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.clip(seconds - self.base_s, 0, self.seconds)

    def _begin(self, start_s: int) -> None:
        """Begin at `start_s`, earlier than so far."""
        earlier = self.base_s - start_s
        rows = _rows(earlier + self.seconds + 1)
        rows[:earlier] = self.rows[0]
        rows[earlier:] = self.rows[: self.seconds + 1]
        self.rows, self.base_s, self.seconds = rows, start_s, earlier + self.seconds

    def _extend(self, end_s: int) -> None:
        """Go on until `end_s`, and forget what is beyond the horizon, in lumps."""
        if end_s - self.base_s > self.horizon_s + _LUMP_S:
            gone = min(self.seconds, end_s - self.horizon_s - self.base_s)
            kept = self.rows[gone : self.seconds + 1].copy()
            self.seconds -= gone
            # A gap as long as the horizon: nothing before it counts.
            self.base_s = self.base_s + gone if self.seconds else end_s - 1
            self.rows[: len(kept)] = kept
        seconds = end_s - self.base_s
        if seconds >= len(self.rows):
            rows = _rows(min(2 * seconds, self.horizon_s + _LUMP_S) + 1)
            rows[: self.seconds + 1] = self.rows[: self.seconds + 1]
            self.rows = rows
        self.rows[self.seconds + 1 : seconds + 1] = self.rows[self.seconds]
        self.seconds = seconds
