"""Decode times from a grid: what an engine's iterations take, many times cheaper to ask for.

Owns the interpolation. A decode iteration's time is close to linear in the context, so between
multiples of `CELL_TOKENS` it is taken as linear: within 0.1% of the exact time (tested over the
catalogue's kinds of attention). Prefill and mixed iterations are exact.
"""

from __future__ import annotations

from functools import lru_cache

from autoscaler.serving.requests import Timings

CELL_TOKENS = 64.0


class GridTimes:
    """`times` with decode times from a grid that fills as it is asked for."""

    __slots__ = ("_cells", "_times", "mixed_ms", "prefill_ms")

    def __init__(self, times: Timings) -> None:
        self._times = times
        self._cells: dict[tuple[float, int], tuple[float, float]] = {}
        self.prefill_ms = times.prefill_ms
        self.mixed_ms = times.mixed_ms

    def decode_ms(self, batch: float, context_tokens: float) -> float:
        """One iteration of `batch` sequences of mean length `context_tokens`."""
        index = int(context_tokens / CELL_TOKENS)
        cell = self._cells.get((batch, index))
        if cell is None:
            low = self._times.decode_ms(batch, max(1.0, index * CELL_TOKENS))
            high = self._times.decode_ms(batch, (index + 1) * CELL_TOKENS)
            slope = (high - low) / CELL_TOKENS
            cell = self._cells[batch, index] = low - slope * index * CELL_TOKENS, slope
        return cell[0] + cell[1] * context_tokens


@lru_cache(maxsize=512)
def grid_times(times: Timings) -> GridTimes:
    """One grid for all engines with the same times."""
    return GridTimes(times)
