"""Counts of all models per second, as cumulative sums, so that the count of any span is one
subtraction. A late record changes all sums from its second on. Models are identified by index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.numba_decorators import compiled
from topics.telemetry import COUNTS, MOST_PER_S

BLOCK_S = 10
"""Seconds of one block of arrival counts, the finest step of the long window."""
_TRIM_EVERY_S = 120
"""Seconds of expired counts that are kept, so that trimming is rare."""
_MAX_PER_S = np.array(MOST_PER_S, np.int64)

Count = tuple[int, int]
"""(covered seconds, arrivals)."""

Blocks = tuple[Count, ...]
"""Counts of consecutive 10 s blocks that start at multiples of 10 s, oldest first."""

ModelIndices = NDArray[np.int64]
"""Indices of models."""


def since_first_arrival(blocks: Blocks) -> Blocks:
    """`blocks` without the blocks before the first arrival, because idle time before traffic began
    is no evidence of the rate."""
    first = next((k for k, (_, arrivals) in enumerate(blocks) if arrivals), len(blocks))
    return blocks[first:]


def _rows(seconds: int, models: int) -> NDArray[np.int64]:
    return np.zeros((seconds, models, 1 + len(COUNTS)), np.int64)


@dataclass(slots=True)
class ArrivalCounts:
    """Cumulative counts of all models.

    rows[i]: per model, covered seconds and COUNTS of the first i seconds after `base_s`. horizon_s:
    at least these last seconds are kept. length_s: seconds from base_s to the newest report of any
    model. newest_end_s: end of the newest reported second of each model, 0 without reports.
    """

    horizon_s: int
    base_s: int = 0
    length_s: int = 0
    rows: NDArray[np.int64] = field(default_factory=lambda: _rows(32, 1))
    newest_end_s: ModelIndices = field(default_factory=lambda: np.zeros(1, np.int64))
    _block_cache: dict[int, tuple[int, Blocks]] = field(
        default_factory=dict
    )  # by model: (first block, blocks)
    _cached_end_s: int = 0

    def reserve(self, models: int) -> None:
        """Make room for model indices below `models`."""
        if models > len(self.newest_end_s):
            more = models + models // 8 - len(self.newest_end_s)
            self.rows = np.pad(self.rows, ((0, 0), (0, more), (0, 0)))
            self.newest_end_s = np.pad(self.newest_end_s, (0, more))

    def clear(self, model: int) -> None:
        """Drop the counts of a model."""
        self.rows[:, model] = 0
        self.newest_end_s[model] = 0
        self._block_cache.pop(model, None)

    def add(
        self, seconds: NDArray[np.int64], models: ModelIndices, values: NDArray[np.int64]
    ) -> None:
        """Add `values`, the COUNTS of `models` in `seconds`; (n,) each, seconds rising. Seconds
        before the horizon are ignored."""
        if not self.length_s:
            self.base_s = int(seconds[0])
        fits = seconds >= min(self.base_s, self.base_s + self.length_s - self.horizon_s)
        if not fits.all():
            seconds, models, values = seconds[fits], models[fits], values[fits]
        if not len(seconds):
            return
        np.maximum.at(self.newest_end_s, models, seconds + 1)
        if seconds[0] < self._cached_end_s:
            self._invalidate_blocks(seconds, models)
        if seconds[0] < self.base_s:
            self._extend_back(int(seconds[0]))
        if seconds[-1] >= self.base_s + self.length_s:
            self._extend_forward(int(seconds[-1]) + 1)
        _add(self.rows[: self.length_s + 1], seconds - self.base_s + 1, models, values)

    def counts_between(self, models: ModelIndices, start_s: int, end_s: int) -> NDArray[np.int64]:
        """Covered seconds and COUNTS of each of `models` from second `start_s` until before
        `end_s`."""
        start, end = (
            min(max(0, second - self.base_s), self.length_s) for second in (start_s, end_s)
        )
        found: NDArray[np.int64] = (self.rows[end] - self.rows[start])[models]
        return found

    def sums_at(self, models: ModelIndices, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cumulative covered seconds and COUNTS of each of `models` at the begin of each of
        `seconds`: (seconds, models, 1 + COUNTS)."""
        found: NDArray[np.int64] = self.rows[self._rows_at(seconds)][:, models]
        return found

    def recent_spans(
        self, models: ModelIndices, now_s: int, spans_s: Sequence[int]
    ) -> list[list[Count]]:
        """Counts of each of `models` in each span of `spans_s`. All spans of a model end with its
        newest reported second, at most `now_s`."""
        ends = np.minimum(self.newest_end_s[models], now_s)[:, None]
        return self._counts(
            models[:, None], self._rows_at(ends - np.array(spans_s)), self._rows_at(ends)
        )

    def whole_blocks(self, models: ModelIndices, now_s: int, window_s: int) -> list[Blocks]:
        """The whole 10 s blocks of each of `models` in the `window_s` seconds before `now_s`. A
        block without reports is (0, 0)."""
        first, end = -(-(now_s - window_s) // BLOCK_S), now_s // BLOCK_S
        self._cached_end_s = end * BLOCK_S
        kept = [
            blocks[max(0, first - cached_first) : max(0, end - cached_first)]
            if cached_first <= first
            else ()
            for _, (cached_first, blocks) in self._cached_blocks(models)
        ]
        upto = min(map(len, kept), default=end - first)
        # compute the new blocks of all models in one call, because most models lack the same blocks
        if upto < end - first:
            edges = self._rows_at(np.arange(first + upto, end + 1) * BLOCK_S)[None]
            newer = self._counts(models[:, None], edges[:, :-1], edges[:, 1:])
            kept = [(*old[:upto], *new) for old, new in zip(kept, newer, strict=True)]
        self._block_cache.update(
            zip(models.tolist(), [(first, blocks) for blocks in kept], strict=True)
        )
        return kept

    def _invalidate_blocks(self, seconds: NDArray[np.int64], models: ModelIndices) -> None:
        for second, model in zip(seconds.tolist(), models.tolist(), strict=True):
            first, blocks = self._block_cache.get(model, (0, ()))
            self._block_cache[model] = first, blocks[: max(0, second // BLOCK_S - first)]

    def _cached_blocks(self, models: ModelIndices) -> list[tuple[int, tuple[int, Blocks]]]:
        return [(model, self._block_cache.get(model, (0, ()))) for model in models.tolist()]

    def _counts(
        self, models: ModelIndices, starts: ModelIndices, ends: ModelIndices
    ) -> list[list[Count]]:
        counts = self.rows[ends, models, :2] - self.rows[starts, models, :2]
        return [list(map(tuple, of)) for of in counts.tolist()]

    def _rows_at(self, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
        # `np.clip` is too slow for a few numbers every tick.
        return np.minimum(np.maximum(seconds - self.base_s, 0), self.length_s)

    def _extend_back(self, start_s: int) -> None:
        """Extend the sums back to `start_s`, which is before `base_s`."""
        earlier = self.base_s - start_s
        first = np.broadcast_to(self.rows[0], (earlier, *self.rows.shape[1:]))
        self.rows = np.concatenate((first, self.rows[: self.length_s + 1]))
        self.base_s, self.length_s = start_s, earlier + self.length_s

    def _extend_forward(self, end_s: int) -> None:
        """Extend the sums to `end_s`. Seconds beyond the horizon are dropped, many at a time."""
        if end_s - self.base_s > self.horizon_s + _TRIM_EVERY_S:
            gone = min(self.length_s, end_s - self.horizon_s - self.base_s)
            kept = self.length_s + 1 - gone
            self.rows[:kept] = self.rows[gone : self.length_s + 1]
            self.length_s -= gone
            self.base_s = end_s - self.horizon_s
        seconds = end_s - self.base_s
        if seconds >= len(self.rows):
            rows = _rows(
                min(2 * seconds, self.horizon_s + _TRIM_EVERY_S) + 1, len(self.newest_end_s)
            )
            rows[: self.length_s + 1] = self.rows[: self.length_s + 1]
            self.rows = rows
        self.rows[self.length_s + 1 : seconds + 1] = self.rows[self.length_s]
        self.length_s = seconds


@compiled
def _add(
    rows: NDArray[np.int64],
    ats: NDArray[np.int64],
    models: NDArray[np.int64],
    values: NDArray[np.int64],
) -> None:
    """Add `values` to all of `rows` from index `ats` on. An index below 1 is before the horizon;
    its values are ignored. The count of one second is limited to `_MAX_PER_S`.
    """
    more = np.zeros(values.shape[1], np.int64)
    for entry in range(len(ats)):
        at, model = ats[entry], models[entry]
        if at < 1:
            continue
        covered = rows[at, model, 0] == rows[at - 1, model, 0]
        for count in range(values.shape[1]):
            before = rows[at, model, 1 + count] - rows[at - 1, model, 1 + count]
            more[count] = min(values[entry, count], max(0, _MAX_PER_S[count] - before))
        for row in range(at, len(rows)):
            rows[row, model, 0] += covered
            for count in range(values.shape[1]):
                rows[row, model, 1 + count] += more[count]
