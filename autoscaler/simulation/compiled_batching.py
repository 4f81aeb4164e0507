"""The batching machine of the simulation: a compiled form of `serving.batching.Batcher`, for one
engine. A differential test compares it with the Batcher, which is the reference. It reports only
the first token and the end of requests. It has no `abort`, because all requests of a simulated
engine end with it.
"""

from __future__ import annotations

import numpy as np

from autoscaler.domain.validation import InvalidValue
from autoscaler.performance.engine_kernel import DECODE, PREFILL, WHOLE
from autoscaler.performance.timing_grid import TimingGrid
from autoscaler.serving.engine_requests import Finished, FirstToken, Limits, Part, Work
from autoscaler.simulation import stepping_kernel as kernel

_KINDS = {Part.WHOLE: WHOLE, Part.PREFILL: PREFILL, Part.DECODE: DECODE}
_FIRST_ROWS = 64


class CompiledBatcher:
    """The batching machine. Times passed to it must not decrease."""

    def __init__(self, grid: TimingGrid, limits: Limits) -> None:
        self._grid = grid
        self._kv_tokens = limits.kv_tokens
        self._limits = np.array(
            [limits.max_seqs, limits.kv_tokens, limits.batched_tokens, limits.lease_ms], dtype=float
        )
        self._rows = np.zeros((0, kernel.ROW_FIELDS), np.int64)
        self._row_ms = np.zeros((0, kernel.ROW_TIMES))
        self._lists = np.zeros((kernel.LISTS, 1), np.int64)
        self._counts = np.zeros(kernel.COUNTS, np.int64)
        self._clocks = np.full(kernel.CLOCKS, 0.0)
        self._clocks[kernel.NEXT_MS] = np.inf
        self._out = np.zeros((0, 3))
        self._ids: list[int] = []  # request of each row
        self._row_of: dict[int, int] = {}
        self._free: list[int] = []
        self._leased: dict[int, int] = {}
        self._grow(_FIRST_ROWS)

    @property
    def held_leases(self) -> int:
        """Finished prefills whose KV waits for a decode instance."""
        return int(self._counts[kernel.LEASED])

    @property
    def preemptions(self) -> int:
        """Number of times that a sequence lost its KV and started again."""
        return int(self._counts[kernel.PREEMPTED])

    def next_event_ms(self) -> float:
        """As `Batcher.next_event_ms`; valid after `advance` or `submit`, not after `release`."""
        return float(self._clocks[kernel.NEXT_MS])

    def submit(self, work: Work) -> None:
        """As `Batcher.submit`. `next_event_ms` is valid at once.

        If the machine is idle, `next_event_ms` is not later than now, so that `advance` starts the
        request. Otherwise the request joins at the end of the iteration in progress.
        """
        need = work.prompt_tokens + work.output_tokens
        if need > self._kv_tokens:
            raise InvalidValue("tokens", need, f"at most {self._kv_tokens} (KV cache)")
        if work.id in self._row_of or work.id in self._leased:
            raise InvalidValue("request id", work.id, "one that is not in use")
        if not self._free:
            self._reclaim()
        row = self._free.pop()
        self._ids[row] = work.id
        self._row_of[work.id] = row
        kernel.submit(
            row, _KINDS[work.part], work.prompt_tokens, work.output_tokens, work.transfer_ms,
            self._rows, self._row_ms, self._lists, self._counts, self._clocks,
        )  # fmt: skip

    def advance(self, to_ms: float) -> list[FirstToken | Finished]:
        """As `Batcher.advance`: first tokens and ends, in order of time."""
        grid = self._grid
        found = kernel.advance(
            to_ms, self._rows, self._row_ms, self._lists, self._counts, self._clocks, self._limits,
            grid.scalars, grid.dense, grid.head, grid.prompt_factor, grid.factors, self._out,
        )  # fmt: skip
        if not found:
            return []
        events: list[FirstToken | Finished] = []
        for row, kind, at_ms in self._out[:found].tolist():
            number = int(row)
            request = self._ids[number]
            if kind == kernel.FIRST:
                events.append(FirstToken(request, at_ms))
                continue
            events.append(Finished(request, at_ms))
            del self._row_of[request]
            if self._rows[number, kernel.KIND] == PREFILL:
                self._leased[request] = number
            else:
                self._free.append(number)
        if found > 1:
            events.sort(key=lambda event: event.at_ms)
        return events

    def release(self, request: int) -> bool:
        """As `Batcher.release`."""
        at = self._lease(request)
        if at is None:
            return False
        row = self._leased.pop(request)
        counts = self._counts
        counts[kernel.USED] -= self._rows[row, kernel.RESERVED]
        last = counts[kernel.LEASED] - 1
        leased = self._lists[kernel.LEASED]
        leased[at:last] = leased[at + 1 : last + 1].copy()
        counts[kernel.LEASED] = last
        counts[kernel.CHANGED] = 1
        self._free.append(row)
        return True

    def extend(self, request: int, until_ms: float) -> bool:
        """As `Batcher.extend`."""
        if self._lease(request) is None:
            return False
        times = self._row_ms[self._leased[request]]
        times[kernel.EXPIRES_MS] = max(times[kernel.EXPIRES_MS], until_ms)
        return True

    # -- inside -------------------------------------------------------------------------------

    def _lease(self, request: int) -> int | None:
        """Index of the lease of `request` in the list of leases; None if the lease has ended."""
        row = self._leased.get(request)
        if row is None:
            return None
        leased = self._lists[kernel.LEASED, : self._counts[kernel.LEASED]].tolist()
        return leased.index(row) if row in leased else None

    def _reclaim(self) -> None:
        """Free the rows of expired leases; if there are none, double the number of rows."""
        leased = set(self._lists[kernel.LEASED, : self._counts[kernel.LEASED]].tolist())
        for request, row in list(self._leased.items()):
            if row not in leased:
                del self._leased[request]
                self._free.append(row)
        if not self._free:
            self._grow(2 * len(self._ids))

    def _grow(self, rows: int) -> None:
        old = len(self._ids)
        more = rows - old
        self._rows = np.vstack([self._rows, np.zeros((more, kernel.ROW_FIELDS), np.int64)])
        self._row_ms = np.vstack([self._row_ms, np.zeros((more, kernel.ROW_TIMES))])
        self._lists = np.hstack([self._lists, np.zeros((kernel.LISTS, more), np.int64)])
        self._out = np.zeros((2 * rows, 3))
        self._ids += [0] * more
        self._free += range(rows - 1, old - 1, -1)
