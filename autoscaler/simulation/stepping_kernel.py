"""Continuous batching of one engine, advanced step by step, as a compiled kernel.

It behaves like `autoscaler.serving.batching.Batcher`; a differential test compares the two. The
caller, `compiled_batching`, holds the state in arrays with one row per sequence.
`performance.engine_kernel` serves a whole list of requests at once and is faster.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.engine_kernel import DECODE, PREFILL
from autoscaler.performance.numba_decorators import compiled
from autoscaler.performance.pass_kernel import decode_ms, mixed_ms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

KIND, PROMPT, OUTPUT, TODO, CONTEXT, RESERVED, PRODUCED = range(7)
ROW_FIELDS = 7
READY_MS, TRANSFER_MS, EXPIRES_MS = range(3)
ROW_TIMES = 3
WAITING, RUNNING, LOADING, LEASED, DECODING, CHUNKED, CHUNK_TOKENS = range(7)
LISTS = 7
USED, CHANGED, UNDER_WAY, PREEMPTED = LISTS, LISTS + 1, LISTS + 2, LISTS + 3
COUNTS = LISTS + 4  # the lengths of the lists, then the four counts above
NOW_MS, END_MS, NEXT_MS = range(3)
CLOCKS = 3
MAX_SEQS, KV_TOKENS, BATCHED, LEASE_MS = range(4)
FIRST, FINISHED = 0.0, 1.0


@compiled
def _steps_ms(
    scalars: Floats, dense: Floats, head: Floats, factors: Floats, steps: int, batch: int,
    context: float,
) -> float:  # fmt: skip
    if steps <= 0:
        return 0.0
    middle = context + 0.5 * (steps - 1)
    return float(steps * decode_ms(scalars, dense, head, factors, batch, middle))


@compiled
def _drop(lists: Ints, counts: Ints, which: int, at: int) -> None:
    """Remove position `at` of a list, and keep the order of the other entries."""
    counts[which] -= 1
    for j in range(at, counts[which]):
        lists[which, j] = lists[which, j + 1]


@compiled
def _emit(
    rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, limits: Floats, out: Floats, found: int,
    r: int, steps: int, first_at: float, last_at: float,
) -> int:  # fmt: skip
    """`Batcher._emit`: emit `steps` tokens of row `r`. Returns the new number of events."""
    if rows[r, PRODUCED] == 0:
        out[found, 0], out[found, 1], out[found, 2] = r, FIRST, first_at
        found += 1
    rows[r, PRODUCED] += steps
    if rows[r, PRODUCED] < rows[r, OUTPUT]:
        return found
    for j in range(counts[RUNNING]):
        if lists[RUNNING, j] == r:
            _drop(lists, counts, RUNNING, j)
            break
    if rows[r, KIND] == PREFILL:
        row_ms[r, EXPIRES_MS] = last_at + limits[LEASE_MS]
        lists[LEASED, counts[LEASED]] = r
        counts[LEASED] += 1
    else:
        counts[USED] -= rows[r, RESERVED]
        rows[r, RESERVED] = 0
    out[found, 0], out[found, 1], out[found, 2] = r, FINISHED, last_at
    return found + 1


@compiled
def _expire(rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, now: float) -> None:
    j = 0
    while j < counts[LEASED]:
        r = lists[LEASED, j]
        if row_ms[r, EXPIRES_MS] <= now:
            counts[USED] -= rows[r, RESERVED]
            _drop(lists, counts, LEASED, j)
        else:
            j += 1


@compiled
def _earliest(row_ms: Floats, lists: Ints, counts: Ints, which: int, column: int) -> float:
    best = np.inf
    for j in range(counts[which]):
        best = min(best, row_ms[lists[which, j], column])
    return float(best)


@compiled
def _prepare(rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, limits: Floats,
             now: float) -> None:  # fmt: skip
    """End leases, admit sequences whose KV has arrived, and preempt until every decode can grow."""
    counts[CHANGED] = 0
    _expire(rows, row_ms, lists, counts, now)
    j = 0
    while j < counts[LOADING]:
        r = lists[LOADING, j]
        if row_ms[r, READY_MS] <= now:
            _drop(lists, counts, LOADING, j)
            rows[r, CONTEXT], rows[r, TODO] = rows[r, TODO] - 1, 0
            lists[RUNNING, counts[RUNNING]] = r
            counts[RUNNING] += 1
        else:
            j += 1
    while counts[RUNNING] > 0:
        growth = 0
        for j in range(counts[RUNNING]):
            r = lists[RUNNING, j]
            if rows[r, TODO] == 0 and rows[r, PRODUCED] > 0:
                growth += 1
        if counts[USED] + growth <= limits[KV_TOKENS]:
            return
        counts[RUNNING] -= 1
        victim = lists[RUNNING, counts[RUNNING]]
        counts[USED] -= rows[victim, RESERVED]
        rows[victim, RESERVED] = 0
        rows[victim, TODO] = rows[victim, PROMPT] + rows[victim, PRODUCED]
        rows[victim, CONTEXT] = 0
        row_ms[victim, READY_MS] = -1.0
        for j in range(counts[WAITING], 0, -1):
            lists[WAITING, j] = lists[WAITING, j - 1]
        lists[WAITING, 0] = victim
        counts[WAITING] += 1
        counts[PREEMPTED] += 1


@compiled
def _chunk(rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, limits: Floats, growth: int,
           now: float) -> None:  # fmt: skip
    """`Batcher._schedule_prompts`: fill the lists of chunks."""
    budget = int(limits[BATCHED]) - counts[DECODING]
    counts[CHUNKED] = 0
    for j in range(counts[RUNNING]):
        r = lists[RUNNING, j]
        if rows[r, TODO] > 0 and budget > 0:
            n = min(rows[r, TODO], budget)
            lists[CHUNKED, counts[CHUNKED]], lists[CHUNK_TOKENS, counts[CHUNKED]] = r, n
            counts[CHUNKED] += 1
            budget -= n
    while counts[WAITING] > 0 and budget > 0:
        r = lists[WAITING, 0]
        if counts[RUNNING] + counts[LOADING] >= limits[MAX_SEQS]:
            break
        if counts[USED] + growth + rows[r, TODO] > limits[KV_TOKENS]:
            break
        _drop(lists, counts, WAITING, 0)
        rows[r, RESERVED] = rows[r, TODO]
        counts[USED] += rows[r, TODO]
        if rows[r, KIND] == DECODE and row_ms[r, READY_MS] >= 0.0:
            row_ms[r, READY_MS] = now + row_ms[r, TRANSFER_MS]
            lists[LOADING, counts[LOADING]] = r
            counts[LOADING] += 1
            continue
        lists[RUNNING, counts[RUNNING]] = r
        counts[RUNNING] += 1
        n = min(rows[r, TODO], budget)
        lists[CHUNKED, counts[CHUNKED]], lists[CHUNK_TOKENS, counts[CHUNKED]] = r, n
        counts[CHUNKED] += 1
        budget -= n


@compiled
def _grow(rows: Ints, lists: Ints, counts: Ints) -> None:
    """Add one token of KV to each decoding sequence."""
    for j in range(counts[DECODING]):
        r = lists[DECODING, j]
        rows[r, CONTEXT] += 1
        if rows[r, PRODUCED] > 0:
            rows[r, RESERVED] += 1
            counts[USED] += 1


@compiled
def _mean_context(rows: Ints, lists: Ints, counts: Ints) -> float:
    total = 0
    for j in range(counts[DECODING]):
        total += rows[lists[DECODING, j], CONTEXT]
    return float(total / counts[DECODING])


@compiled
def submit(
    row: int, kind: int, prompt: int, output: int, transfer_ms: float,
    rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, clocks: Floats,
) -> None:  # fmt: skip
    """`Batcher.submit`: put a request into a free `row`. It joins when the current iteration ends,
    or at once if there is none."""
    rows[row] = 0
    rows[row, KIND], rows[row, PROMPT], rows[row, OUTPUT] = kind, prompt, output
    rows[row, TODO] = prompt
    row_ms[row] = 0.0
    row_ms[row, TRANSFER_MS] = transfer_ms
    lists[WAITING, counts[WAITING]] = row
    counts[WAITING] += 1
    counts[CHANGED] = 1
    begins_ms = clocks[END_MS] if counts[UNDER_WAY] else clocks[NOW_MS]
    clocks[NEXT_MS] = min(clocks[NEXT_MS], begins_ms)


@compiled
def advance(
    to_ms: float,
    rows: Ints,
    row_ms: Floats,
    lists: Ints,
    counts: Ints,
    clocks: Floats,
    limits: Floats,
    scalars: Floats,
    dense: Floats,
    head: Floats,
    prompt_factor: Floats,
    factors: Floats,
    out: Floats,
) -> int:
    """`Batcher.advance` and `next_event_ms`: run until to_ms. Returns the number of events.

    rows (n, ROW_FIELDS), row_ms (n, ROW_TIMES): sequences. lists (LISTS, n + 1): the rows in each
    state. counts: the lengths of the lists. out (2 n, 3): row, FIRST or FINISHED, ms, not sorted.
    clocks[NEXT_MS]: earliest time of the next event.
    """
    found = 0
    while True:
        if counts[UNDER_WAY]:
            if clocks[END_MS] > to_ms:
                break
            now = clocks[NOW_MS] = clocks[END_MS]
            counts[UNDER_WAY] = 0
            for j in range(counts[DECODING]):
                found = _emit(rows, row_ms, lists, counts, limits, out, found,
                              lists[DECODING, j], 1, now, now)  # fmt: skip
            for j in range(counts[CHUNKED]):
                r, n = lists[CHUNKED, j], lists[CHUNK_TOKENS, j]
                rows[r, TODO] -= n
                rows[r, CONTEXT] += n
                if rows[r, TODO] == 0:
                    found = _emit(rows, row_ms, lists, counts, limits, out, found, r, 1, now, now)
            continue
        now = clocks[NOW_MS]
        _prepare(rows, row_ms, lists, counts, limits, now)
        growth = counts[DECODING] = 0
        for j in range(counts[RUNNING]):
            r = lists[RUNNING, j]
            if rows[r, TODO] == 0:
                lists[DECODING, counts[DECODING]] = r
                counts[DECODING] += 1
                growth += 1 if rows[r, PRODUCED] > 0 else 0
        _chunk(rows, row_ms, lists, counts, limits, growth, now)
        batch = counts[DECODING]
        if counts[CHUNKED] > 0:
            _grow(rows, lists, counts)
            tokens, seen = 0, 0.0
            for j in range(counts[CHUNKED]):
                n = lists[CHUNK_TOKENS, j]
                tokens += n
                seen += n * (rows[lists[CHUNKED, j], CONTEXT] + 0.5 * n)
            middle = _mean_context(rows, lists, counts) if batch > 0 else 0.0
            clocks[END_MS] = now + mixed_ms(
                scalars, dense, head, prompt_factor,
                tokens, seen / tokens - 0.5 * tokens, batch, middle,
            )  # fmt: skip
            counts[UNDER_WAY] = 1
            continue
        joins = _earliest(row_ms, lists, counts, LOADING, READY_MS)
        if counts[WAITING] > 0:
            joins = min(joins, _earliest(row_ms, lists, counts, LEASED, EXPIRES_MS))
        if batch == 0:
            if joins > to_ms:
                break
            clocks[NOW_MS] = max(now, joins)
            continue
        middle = _mean_context(rows, lists, counts)
        steps = rows[lists[DECODING, 0], OUTPUT] - rows[lists[DECODING, 0], PRODUCED]
        for j in range(1, batch):
            r = lists[DECODING, j]
            steps = min(steps, rows[r, OUTPUT] - rows[r, PRODUCED])
        free = int(limits[KV_TOKENS]) - counts[USED]
        steps = min(steps, 1 + max(0, free - growth) // batch)
        if joins < np.inf:
            # The iteration in progress at `joins` still runs to its end.
            low, high = 0, steps  # search for the number of steps that end before `joins`
            while low < high:
                k = (low + high + 1) // 2
                if _steps_ms(scalars, dense, head, factors, k, batch, middle) < joins - now:
                    low = k
                else:
                    high = k - 1
            steps = min(steps, low + 1)
        steps = max(1, steps)
        low, high = 0, steps
        while low < high:
            k = (low + high + 1) // 2
            if _steps_ms(scalars, dense, head, factors, k, batch, middle) <= to_ms - now:
                low = k
            else:
                high = k - 1
        first_at = now + _steps_ms(scalars, dense, head, factors, 1, batch, middle)
        if low == 0:
            _grow(rows, lists, counts)
            clocks[END_MS] = first_at
            counts[UNDER_WAY] = 1
            continue
        last_at = now + _steps_ms(scalars, dense, head, factors, low, batch, middle)
        for j in range(batch):
            r = lists[DECODING, j]
            grown = low - 1 + (1 if rows[r, PRODUCED] > 0 else 0)
            rows[r, CONTEXT] += low
            rows[r, RESERVED] += grown
            counts[USED] += grown
            found = _emit(rows, row_ms, lists, counts, limits, out, found, r, low, first_at,
                          last_at)  # fmt: skip
        clocks[NOW_MS] = last_at
    _expire(rows, row_ms, lists, counts, to_ms)
    clocks[NOW_MS] = to_ms
    expiry = _earliest(row_ms, lists, counts, LEASED, EXPIRES_MS)
    arrival = _earliest(row_ms, lists, counts, LOADING, READY_MS)
    if not counts[UNDER_WAY]:
        clocks[NEXT_MS] = min(expiry, arrival)
        return found
    end = clocks[END_MS]
    if counts[CHUNKED] > 0 or counts[CHANGED]:
        clocks[NEXT_MS] = min(expiry, end)
        return found
    batch = counts[DECODING]
    shortest = rows[lists[DECODING, 0], OUTPUT] - rows[lists[DECODING, 0], PRODUCED]
    for j in range(1, batch):
        r = lists[DECODING, j]
        shortest = min(shortest, rows[r, OUTPUT] - rows[r, PRODUCED])
    middle = _mean_context(rows, lists, counts) + 1.0
    rest = _steps_ms(scalars, dense, head, factors, shortest - 1, batch, middle)
    clocks[NEXT_MS] = min(expiry, end + rest, max(arrival, end))
    return found
