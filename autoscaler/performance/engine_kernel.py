"""One engine's continuous batching over a given list of requests, as a compiled kernel.

Owns the same machine as `autoscaler.serving.batching.Batcher`, without its events: a list of
requests goes in, the latencies of each come out. A differential test holds the two together; the
Batcher is what counts. Knows nothing of rates, SLOs or distributions.

Sequences that decode step together, so a request is two numbers: the global decode step at which
it ends, and its context less that counter. Only one prompt can be half computed at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.compiled import compiled

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE, PREFILL, DECODE = 0, 1, 2
_NEVER, _LAST = 1e300, 1 << 62
# Places in the array of scalars, see `timing_grid`.
COMPUTE, TRAFFIC, BLEND, WINDOW, SHARE, STEP, SEQUENCE, FITTED, FIT = range(9)
DEGREE = 9
SCALARS = FIT + DEGREE + 1


@compiled
def _blended(s: Floats, x: float) -> float:
    """The polynomial FIT at `x`. Two powers in its place are half of the time of all that is
    computed here."""
    i, x2 = FIT, x * x
    low = s[i] + s[i + 1] * x + (s[i + 2] + s[i + 3] * x) * x2
    high = s[i + 4] + s[i + 5] * x + (s[i + 6] + s[i + 7] * x) * x2
    return float(low + (high + (s[i + 8] + s[i + 9] * x) * (x2 * x2)) * (x2 * x2))


@compiled
def attention_ms(scalars: Floats, tokens: float, sequences: float, context: float) -> float:
    """`Roofline.attention_ms` of all layers."""
    seen = context + 0.5 * tokens
    cached = context + tokens
    window = scalars[WINDOW]
    if window > 0.0:
        share = scalars[SHARE]
        seen = (1.0 - share) * seen + share * min(seen, window)
        cached = (1.0 - share) * cached + share * min(cached, window + tokens)
    compute = scalars[COMPUTE] * sequences * tokens * seen
    traffic = scalars[TRAFFIC] * sequences * cached
    if compute <= 0.0:
        return float(traffic)
    if tokens == 1 and scalars[FITTED] > 0.0:
        return float(compute * _blended(scalars, 2.0 * cached / seen - 3.0))
    exponent = scalars[BLEND]
    return float(compute * (1.0 + (traffic / compute) ** exponent) ** (1.0 / exponent))


@compiled
def _factor_ms(factors: Floats, batch: int, context: float) -> float:
    """Correction of a decode iteration; columns are half doublings of the context."""
    if factors.shape[1] == 1:
        return float(factors[0, 0])
    at = 2.0 * np.log2(max(context, 1.0))
    low = min(int(at), factors.shape[1] - 2)
    part = min(at - low, 1.0)
    return float(factors[batch, low] * (1.0 - part) + factors[batch, low + 1] * part)


@compiled
def decode_ms(
    scalars: Floats, dense: Floats, head: Floats, factors: Floats, batch: int, context: float
) -> float:
    """`StepTimes.decode_ms`."""
    time = dense[batch] + head[batch] + scalars[STEP] + batch * scalars[SEQUENCE]
    time += attention_ms(scalars, 1.0, batch, context)
    return float(_factor_ms(factors, batch, context) * time)


@compiled
def mixed_ms(
    scalars: Floats,
    dense: Floats,
    head: Floats,
    prompt_factor: Floats,
    tokens: int,
    context: float,
    batch: int,
    batch_context: float,
) -> float:
    """`StepTimes.mixed_ms`, or `prefill_ms` where nothing decodes."""
    total = tokens + batch
    time = dense[total] + attention_ms(scalars, tokens, 1.0, context) + scalars[STEP]
    if batch > 0:
        time += attention_ms(scalars, 1.0, batch, batch_context) + batch * scalars[SEQUENCE]
    return float(prompt_factor[total] * (time + head[batch + 1]))


@compiled
def serve(
    kind: int,
    arrival_ms: Floats,
    inputs: Ints,
    outputs: Ints,
    hold_ms: Floats,
    max_seqs: int,
    kv_tokens: int,
    batched_tokens: int,
    scalars: Floats,
    dense: Floats,
    head: Floats,
    prompt_factor: Floats,
    factors: Floats,
    first_ms: Floats,
    last_ms: Floats,
    stats: Floats,
) -> None:
    """Serve the requests in order of arrival; fills first_ms and last_ms (absolute), and stats.

    kind: WHOLE, PREFILL (outputs are 1) or DECODE.  hold_ms, (n,): of a DECODE how long its KV
    takes to arrive, of a PREFILL how long its KV is kept afterwards.  A request that never fits
    the KV cache is refused: both of its times are infinite.
    stats, (5,): ms with work, ms x decoding sequences, ms in which the head of the queue waited
    for KV, preemptions, iterations.
    """
    count = len(arrival_ms)
    now = 0.0
    used = 0
    step = 0  # decode iterations so far
    arrived = 0  # requests that have come
    at_queue = 0  # next of them that was never admitted
    again = np.empty(max_seqs + 1, np.int64)  # preempted, last one first
    agains = 0
    running = np.empty(max_seqs, np.int64)
    batch = 0
    fresh = 0  # of these, DECODEs that have made no step yet
    soonest = _LAST  # the step at which the first of them ends
    order = 0
    order_of = np.zeros(count, np.int64)
    ends_at = np.zeros(count, np.int64)
    context_base = np.zeros(count, np.int64)
    kept_base = np.zeros(count, np.int64)
    produced = np.zeros(count, np.int64)
    lost = np.zeros(count, np.bool_)  # preempted: its KV is computed again, here
    contexts = 0  # sum over the batch
    loading = np.empty(max_seqs, np.int64)
    ready_ms = np.empty(count, np.float64)
    loads = 0
    held = np.empty(count, np.int64)  # PREFILLs whose KV is kept
    helds = 0
    partial = -1
    partial_todo = 0
    partial_done = 0
    done = 0
    chunk_of = np.empty(max_seqs + 1, np.int64)
    for i in range(count):
        first_ms[i] = last_ms[i] = -1.0
    while done < count:
        while arrived < count and arrival_ms[arrived] <= now:
            arrived += 1
        # Leases that end, KV that has arrived.
        i = 0
        while i < helds:
            r = held[i]
            if ready_ms[r] <= now:
                used -= inputs[r]
                helds -= 1
                held[i] = held[helds]
            else:
                i += 1
        i = 0
        while i < loads:
            r = loading[i]
            if ready_ms[r] <= now:
                loads -= 1
                for j in range(i, loads):
                    loading[j] = loading[j + 1]
                running[batch] = r
                batch += 1
                fresh += 1
                order += 1
                order_of[r] = order
                ends_at[r] = step + outputs[r]
                soonest = min(soonest, ends_at[r])
                context_base[r] = inputs[r] - 1 - step
                kept_base[r] = inputs[r] - 1 - step
                contexts += inputs[r] - 1
            else:
                i += 1
        # Preempt the latest until every decode can grow.
        while used + batch - fresh > kv_tokens and (batch > 0 or partial >= 0):
            stats[3] += 1.0
            if partial >= 0:
                victim = partial
                used -= inputs[victim] + produced[victim]
                partial = -1
            else:
                at = 0
                for j in range(1, batch):
                    if order_of[running[j]] > order_of[running[at]]:
                        at = j
                victim = running[at]
                batch -= 1
                running[at] = running[batch]
                if ends_at[victim] == soonest:
                    soonest = _LAST
                    for j in range(batch):
                        soonest = min(soonest, ends_at[running[j]])
                contexts -= context_base[victim] + step
                made = outputs[victim] - (ends_at[victim] - step)
                if kind == DECODE and made == 0:
                    fresh -= 1
                    used -= inputs[victim]
                else:
                    used -= kept_base[victim] + step
                produced[victim] = made
            lost[victim] = True
            again[agains] = victim
            agains += 1
        # Chunks of this iteration.
        growth = batch - fresh
        budget = batched_tokens - batch
        tokens = 0
        seen = 0.0
        chunks = 0  # prompts that this iteration completes
        if partial >= 0:
            n = min(partial_todo, budget)
            tokens += n
            seen += n * (partial_done + 0.5 * n)
            budget -= n
            partial_todo -= n
            partial_done += n
            if partial_todo == 0:
                chunk_of[chunks] = partial
                chunks += 1
                partial = -1
        blocked = False
        while budget > 0 and (agains > 0 or at_queue < arrived):
            r = again[agains - 1] if agains > 0 else at_queue
            if agains == 0 and inputs[r] + outputs[r] > kv_tokens:
                first_ms[r] = last_ms[r] = np.inf
                done += 1
                at_queue += 1
                continue
            if batch + chunks + loads >= max_seqs:
                break
            todo = inputs[r] + produced[r]
            if used + growth + todo > kv_tokens:
                blocked = True
                break
            if agains > 0:
                agains -= 1
            else:
                at_queue += 1
            used += todo
            order += 1
            order_of[r] = order
            if kind == DECODE and not lost[r]:
                ready_ms[r] = now + hold_ms[r]
                loading[loads] = r
                loads += 1
                continue
            n = min(todo, budget)
            tokens += n
            seen += n * 0.5 * n
            budget -= n
            if n == todo:
                chunk_of[chunks] = r
                chunks += 1
            else:
                partial, partial_todo, partial_done = r, todo - n, n
        if done >= count:
            break
        if tokens > 0:
            middle = contexts / batch if batch > 0 else 0.0
            time = mixed_ms(
                scalars, dense, head, prompt_factor,
                tokens, seen / tokens - 0.5 * tokens, batch, middle,
            )  # fmt: skip
            steps = 1
        elif batch > 0:
            middle = contexts / batch
            steps = min(soonest - step, 1 + max(0, kv_tokens - used - growth) // batch)
            until = _NEVER
            if arrived < count:
                until = arrival_ms[arrived]
            for j in range(loads):
                until = min(until, ready_ms[loading[j]])
            span = until - now
            centre = middle + 0.5 * (steps - 1)
            time = steps * decode_ms(scalars, dense, head, factors, batch, centre)
            if time >= span and steps > 1:
                # The iteration under way at that moment still runs to its end.
                low, high = 0, steps
                guess = int(span / time * steps)
                while high - low > 1:
                    k = min(max(guess, low + 1), high - 1)
                    centre = middle + 0.5 * (k - 1)
                    took = k * decode_ms(scalars, dense, head, factors, batch, centre)
                    if took >= span:
                        high, time = k, took
                        guess = k - 1
                    else:
                        low = k
                        guess = k + 1
                steps = high
        else:
            wake = _NEVER
            if arrived < count:
                wake = arrival_ms[arrived]
            for j in range(loads):
                wake = min(wake, ready_ms[loading[j]])
            if agains > 0 or at_queue < arrived:
                for j in range(helds):
                    wake = min(wake, ready_ms[held[j]])
            now = max(now, wake)
            continue
        stats[0] += time
        stats[1] += time * batch
        stats[4] += 1.0
        if blocked:
            stats[2] += time
        if fresh > 0:
            one = time
            if steps > 1:
                one = decode_ms(scalars, dense, head, factors, batch, middle)
            for j in range(batch):
                r = running[j]
                if first_ms[r] < 0.0:
                    first_ms[r] = now + one
        now += time
        step += steps
        contexts += steps * batch
        used += steps * batch - fresh
        fresh = 0
        if soonest <= step:
            soonest = _LAST
            j = 0
            while j < batch:
                r = running[j]
                if ends_at[r] <= step:
                    last_ms[r] = now
                    done += 1
                    batch -= 1
                    running[j] = running[batch]
                    contexts -= context_base[r] + step
                    used -= kept_base[r] + step
                else:
                    soonest = min(soonest, ends_at[r])
                    j += 1
        for j in range(chunks):
            r = chunk_of[j]
            if first_ms[r] < 0.0:
                first_ms[r] = now
            todo = inputs[r] + produced[r]
            left = outputs[r] - produced[r] - 1
            if left <= 0:
                last_ms[r] = now
                done += 1
                if kind == PREFILL:
                    ready_ms[r] = now + hold_ms[r]
                    held[helds] = r
                    helds += 1
                else:
                    used -= todo
                continue
            running[batch] = r
            batch += 1
            ends_at[r] = step + left
            soonest = min(soonest, ends_at[r])
            context_base[r] = todo - step
            kept_base[r] = todo - step
            contexts += todo


# -- the same machine, step by step ---------------------------------------------------------------
#
# Its state lives in arrays of the caller (`autoscaler.serving.compiled_batching`), a sequence is a
# row. It stands in this file because kept machine code is checked against its own file only.

KIND, PROMPT, OUTPUT, TODO, CONTEXT, RESERVED, PRODUCED = range(7)
ROW_FIELDS = 7
READY_MS, TRANSFER_MS, EXPIRES_MS = range(3)
ROW_TIMES = 3
WAITING, RUNNING, LOADING, LEASED, DECODING, CHUNKED, CHUNK_TOKENS = range(7)
LISTS = 7
USED, CHANGED, UNDER_WAY, PREEMPTED = LISTS, LISTS + 1, LISTS + 2, LISTS + 3
COUNTS = LISTS + 4  # the lengths of the lists, then these
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
    """Remove position `at` of a list; the order of the rest stays."""
    counts[which] -= 1
    for j in range(at, counts[which]):
        lists[which, j] = lists[which, j + 1]


@compiled
def _emit(
    rows: Ints, row_ms: Floats, lists: Ints, counts: Ints, limits: Floats, out: Floats, found: int,
    r: int, steps: int, first_at: float, last_at: float,
) -> int:  # fmt: skip
    """`Batcher._emit`: `steps` tokens of row `r`; returns how many events there are now."""
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
    """Leases that end, KV that has arrived, and preemption until every decode can grow."""
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
    """`Batcher._schedule_prompts`: fills the lists of chunks."""
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
    """One token more in KV for everyone who decodes."""
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
    """`Batcher.advance` and `next_event_ms`: run until to_ms; returns the number of events.

    rows (n, ROW_FIELDS), row_ms (n, ROW_TIMES): sequences.  lists (LISTS, n + 1): rows by where
    they are, counts their lengths.  out (2 n, 3): row, FIRST or FINISHED, ms, not sorted.
    clocks[NEXT_MS] is when the next event can come out.
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
            # The iteration under way at that moment still runs to its end.
            low, high = 0, steps  # steps that end before it: the most in [0, steps]
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
