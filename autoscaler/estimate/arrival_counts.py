"""Counts of all models over time: any span of seconds costs one subtraction.

Owns cumulative sums per second. A record that comes late changes the sums from its second on. Knows
models by number, and neither who reported nor any clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoscaler.performance.numba_decorators import compiled
from topics.telemetry import COUNTS, MOST_PER_S

BLOCK_S = 10
_LUMP_S = 120
_MOST = np.array(MOST_PER_S, np.int64)

Count = tuple[int, int]
"""(covered seconds, arrivals)."""

Blocks = tuple[Count, ...]
"""Counts of consecutive 10 s blocks that start at multiples of 10 s, oldest first."""

Numbers = NDArray[np.int64]
"""Of models."""


def begun(blocks: Blocks) -> Blocks:
    """`blocks` from the first one with requests on: idle time before it says nothing of the rate
    that began then."""
    first = next((k for k, (_, arrivals) in enumerate(blocks) if arrivals), len(blocks))
    return blocks[first:]


def _rows(seconds: int, models: int) -> NDArray[np.int64]:
    return np.zeros((seconds, models, 1 + len(COUNTS)), np.int64)


@dataclass(slots=True)
class Totals:
    """rows[i]: covered seconds and COUNTS of each model in the i seconds from `base_s` on, the last
    `horizon_s` at least. seconds: how many there are; the last one is the newest that was reported
    of any model. ends_s: of each model, the second after its newest; 0 where nothing was."""

    horizon_s: int
    base_s: int = 0
    seconds: int = 0
    rows: NDArray[np.int64] = field(default_factory=lambda: _rows(32, 1))
    ends_s: Numbers = field(default_factory=lambda: np.zeros(1, np.int64))
    _blocks: dict[int, tuple[int, Blocks]] = field(default_factory=dict)  # the first, and how far
    _blocks_end_s: int = 0

    def room_for(self, models: int) -> None:
        """Numbers of models are below `models` from now on."""
        if models > len(self.ends_s):
            more = models + models // 8 - len(self.ends_s)
            self.rows = np.pad(self.rows, ((0, 0), (0, more), (0, 0)))
            self.ends_s = np.pad(self.ends_s, (0, more))

    def clear(self, model: int) -> None:
        """Forget the counts of a model."""
        self.rows[:, model] = 0
        self.ends_s[model] = 0
        self._blocks.pop(model, None)

    def add(self, seconds: NDArray[np.int64], models: Numbers, values: NDArray[np.int64]) -> None:
        """Count COUNTS of `models` in `seconds`, (n,) each, rising, in; what is older than the
        horizon is left out."""
        if not self.seconds:
            self.base_s = int(seconds[0])
        fits = seconds >= min(self.base_s, self.base_s + self.seconds - self.horizon_s)
        if not fits.all():
            seconds, models, values = seconds[fits], models[fits], values[fits]
        if not len(seconds):
            return
        np.maximum.at(self.ends_s, models, seconds + 1)
        if seconds[0] < self._blocks_end_s:
            self._forget_blocks(seconds, models)
        if seconds[0] < self.base_s:
            self._begin(int(seconds[0]))
        if seconds[-1] >= self.base_s + self.seconds:
            self._extend(int(seconds[-1]) + 1)
        _add(self.rows[: self.seconds + 1], seconds - self.base_s + 1, models, values)

    def between(self, models: Numbers, start_s: int, end_s: int) -> NDArray[np.int64]:
        """Covered seconds, and COUNTS, of each of `models` from `start_s` until before `end_s`."""
        start, end = (
            min(max(0, second - self.base_s), self.seconds) for second in (start_s, end_s)
        )
        found: NDArray[np.int64] = (self.rows[end] - self.rows[start])[models]
        return found

    def spans(self, models: Numbers, now_s: int, spans_s: Sequence[int]) -> list[list[Count]]:
        """Of each of `models` its counts in each span of `spans_s` before its newest second that
        is not after `now_s`."""
        ends = np.minimum(self.ends_s[models], now_s)[:, None]
        return self._counts(models[:, None], self._ats(ends - np.array(spans_s)), self._ats(ends))

    def whole_blocks(self, models: Numbers, now_s: int, window_s: int) -> list[Blocks]:
        """Of each of `models` the whole blocks of the `window_s` seconds before `now_s`; (0, 0)
        for unseen ones."""
        first, end = -(-(now_s - window_s) // BLOCK_S), now_s // BLOCK_S
        self._blocks_end_s = end * BLOCK_S
        kept = [
            blocks[max(0, first - known) : max(0, end - known)] if known <= first else ()
            for _, (known, blocks) in self._known_blocks(models)
        ]
        upto = min(map(len, kept), default=end - first)
        if upto < end - first:  # of all models at once: they mostly lack the same ones
            edges = self._ats(np.arange(first + upto, end + 1) * BLOCK_S)[None]
            newer = self._counts(models[:, None], edges[:, :-1], edges[:, 1:])
            kept = [(*old[:upto], *new) for old, new in zip(kept, newer, strict=True)]
        self._blocks.update(zip(models.tolist(), [(first, blocks) for blocks in kept], strict=True))
        return kept

    def _forget_blocks(self, seconds: NDArray[np.int64], models: Numbers) -> None:
        for second, model in zip(seconds.tolist(), models.tolist(), strict=True):
            first, blocks = self._blocks.get(model, (0, ()))
            self._blocks[model] = first, blocks[: max(0, second // BLOCK_S - first)]

    def _known_blocks(self, models: Numbers) -> list[tuple[int, tuple[int, Blocks]]]:
        return [(model, self._blocks.get(model, (0, ()))) for model in models.tolist()]

    def _counts(self, models: Numbers, starts: Numbers, ends: Numbers) -> list[list[Count]]:
        counts = self.rows[ends, models, :2] - self.rows[starts, models, :2]
        return [list(map(tuple, of)) for of in counts.tolist()]

    def _ats(self, seconds: NDArray[np.int64]) -> NDArray[np.int64]:
        # Each tick: `np.clip` takes three times as long for a few numbers.
        return np.minimum(np.maximum(seconds - self.base_s, 0), self.seconds)

    def _begin(self, start_s: int) -> None:
        """Begin at `start_s`, earlier than so far."""
        earlier = self.base_s - start_s
        first = np.broadcast_to(self.rows[0], (earlier, *self.rows.shape[1:]))
        self.rows = np.concatenate((first, self.rows[: self.seconds + 1]))
        self.base_s, self.seconds = start_s, earlier + self.seconds

    def _extend(self, end_s: int) -> None:
        """Go on until `end_s`, and forget what is beyond the horizon, in lumps."""
        if end_s - self.base_s > self.horizon_s + _LUMP_S:
            gone = min(self.seconds, end_s - self.horizon_s - self.base_s)
            kept = self.seconds + 1 - gone
            self.rows[:kept] = self.rows[gone : self.seconds + 1]
            self.seconds -= gone
            self.base_s = end_s - self.horizon_s
        seconds = end_s - self.base_s
        if seconds >= len(self.rows):
            rows = _rows(min(2 * seconds, self.horizon_s + _LUMP_S) + 1, len(self.ends_s))
            rows[: self.seconds + 1] = self.rows[: self.seconds + 1]
            self.rows = rows
        self.rows[self.seconds + 1 : seconds + 1] = self.rows[self.seconds]
        self.seconds = seconds


@compiled
def _add(
    rows: NDArray[np.int64],
    ats: NDArray[np.int64],
    models: NDArray[np.int64],
    values: NDArray[np.int64],
) -> None:
    """Count `values` in to all of `rows` from `ats` on; those below 1 were forgotten. A second
    holds at most `_MOST` of each count, whatever gateways say together."""
    more = np.zeros(values.shape[1], np.int64)
    for entry in range(len(ats)):
        at, model = ats[entry], models[entry]
        if at < 1:
            continue
        covered = rows[at, model, 0] == rows[at - 1, model, 0]
        for count in range(values.shape[1]):
            before = rows[at, model, 1 + count] - rows[at - 1, model, 1 + count]
            more[count] = min(values[entry, count], max(0, _MOST[count] - before))
        for row in range(at, len(rows)):
            rows[row, model, 0] += covered
            for count in range(values.shape[1]):
                rows[row, model, 1 + count] += more[count]
