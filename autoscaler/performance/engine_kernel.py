"""Continuous batching of one engine over a given list of requests, as a compiled kernel.

Computes the latencies of each request as `autoscaler.serving.batching.Batcher` does, without its
events. A differential test compares the two; the Batcher is the reference.

All decoding sequences advance together, so a decoding sequence is stored as one number. It contains
the global decode step at which the sequence ends, and the index of its request (at most 2^24
requests). At most one prompt is partly computed at a time.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from autoscaler.performance.numba_decorators import compiled
from autoscaler.performance.pass_kernel import decode_ms, mixed_ms

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

WHOLE, PREFILL, DECODE = 0, 1, 2
_NEVER = 1e300
_BITS = 24  # bits of a heap entry for the request's index
_REQUEST = (1 << _BITS) - 1
_SURELY = 1.0 - 1e-6  # safety margin, larger than the error of `timing_grid`'s polynomial


@compiled
def _rise(heap: Ints, at: int) -> None:
    """Move the entry at `at` towards the root until the heap order holds."""
    one = heap[at]
    while at > 0:
        above = (at - 1) // 2
        if heap[above] <= one:
            break
        heap[at] = heap[above]
        at = above
    heap[at] = one


@compiled
def _remove(heap: Ints, at: int, count: int) -> None:
    """Remove the entry at `at` from the first `count` entries of `heap`. The last entry replaces
    it."""
    last = count - 1
    one = heap[last]
    under = 2 * at + 1
    while under < last:
        if under + 1 < last and heap[under + 1] < heap[under]:
            under += 1
        if heap[under] >= one:
            break
        heap[at] = heap[under]
        at = under
        under = 2 * at + 1
    heap[at] = one
    _rise(heap, at)


@compiled
def serve(
    kind: int,
    arrival_ms: Floats,
    inputs: Ints,
    outputs: Ints,
    hold_ms: Floats,
    cached: Ints,
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
    """Serve the requests in order of arrival; fill first_ms and last_ms (absolute), and stats.

    kind: WHOLE, PREFILL (outputs are 1) or DECODE. hold_ms, (n,): for DECODE the transfer time of
    the KV, for PREFILL the time for which the KV is kept after the prefill. cached, (n,): prompt
    tokens that are not computed, because the prefix cache has them; they take KV as the others do,
    and are less than the prompt. A request that never
    fits the KV cache is refused: both of its times are infinite. stats, (5,): ms with work, ms x
    decoding sequences, ms in which the head of the queue waited for KV, preemptions, iterations.
    """
    count = len(arrival_ms)
    now = 0.0
    used = 0
    step = 0  # decode iterations so far
    arrived = 0  # number of arrived requests
    at_queue = 0  # next request to admit
    again = np.empty(max_seqs + 1, np.int64)  # preempted requests, newest first
    agains = 0
    # A min-heap by end: each entry is the step at which a request ends, and its index.
    running = np.empty(max_seqs, np.int64)
    batch = 0
    fresh = 0  # number of DECODE requests in the heap that had no step yet
    fresh_of = np.empty(max_seqs, np.int64)
    order = 0
    order_of = np.zeros(count, np.int64)
    produced = np.zeros(count, np.int64)
    # whether the request was preempted, so that its KV must be recomputed here
    lost = np.zeros(count, np.bool_)
    contexts = 0  # sum of the contexts in the batch, in tokens
    loading = np.empty(max_seqs, np.int64)
    ready_ms = np.empty(count, np.float64)
    loads = 0
    held = np.empty(count, np.int64)  # PREFILL requests whose KV is kept
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
        # End leases; admit requests whose KV has arrived.
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
                fresh_of[fresh] = r
                fresh += 1
                order += 1
                order_of[r] = order
                running[batch] = (step + outputs[r]) << _BITS | r
                _rise(running, batch)
                batch += 1
                contexts += inputs[r] - 1
            else:
                i += 1
        # Preempt the newest requests until every decode can grow.
        while used + batch - fresh > kv_tokens and (batch > 0 or partial >= 0):
            stats[3] += 1.0
            if partial >= 0:
                victim = partial
                used -= inputs[victim] + produced[victim]
                partial = -1
            else:
                at = 0
                for j in range(1, batch):
                    if order_of[running[j] & _REQUEST] > order_of[running[at] & _REQUEST]:
                        at = j
                victim = running[at] & _REQUEST
                made = outputs[victim] - ((running[at] >> _BITS) - step)
                _remove(running, at, batch)
                batch -= 1
                contexts -= inputs[victim] + made - 1
                if kind == DECODE and made == 0:
                    fresh -= 1
                    for j in range(fresh):
                        if fresh_of[j] == victim:
                            fresh_of[j] = fresh_of[fresh]
                    used -= inputs[victim]
                else:
                    used -= inputs[victim] + made - 1
                produced[victim] = made
            lost[victim] = True
            again[agains] = victim
            agains += 1
        # Choose the prompts, whole or in part, of this iteration.
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
            skipped = cached[r]
            todo -= skipped
            n = min(todo, budget)
            tokens += n
            seen += n * (skipped + 0.5 * n)
            budget -= n
            if n == todo:
                chunk_of[chunks] = r
                chunks += 1
            else:
                partial, partial_todo, partial_done = r, todo - n, skipped + n
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
            steps = (running[0] >> _BITS) - step
            if (steps - 1) * batch > kv_tokens - used - growth:
                steps = 1 + max(0, kv_tokens - used - growth) // batch
            until = _NEVER
            if arrived < count:
                until = arrival_ms[arrived]
            for j in range(loads):
                until = min(until, ready_ms[loading[j]])
            span = until - now
            centre = middle + 0.5 * (steps - 1)
            time = steps * decode_ms(scalars, dense, head, factors, batch, centre)
            if time >= span and steps > 1:
                # The iteration in progress at `until` still runs to its end.
                low, high = 0, steps
                # Without measurements, no step is faster than an earlier one, so the mean step time
                # gives a lower bound of the number of steps.
                guess = int(span / time * steps)
                if factors.shape[1] == 1 and guess * time < steps * span * _SURELY:
                    low = guess
                    guess += 1
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
            for j in range(fresh):
                first_ms[fresh_of[j]] = now + one
        now += time
        step += steps
        contexts += steps * batch
        used += steps * batch - fresh
        fresh = 0
        while batch > 0 and running[0] >> _BITS <= step:
            r = running[0] & _REQUEST
            _remove(running, 0, batch)
            batch -= 1
            last_ms[r] = now
            done += 1
            contexts -= inputs[r] + outputs[r] - 1
            used -= inputs[r] + outputs[r] - 1
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
            running[batch] = (step + left) << _BITS | r
            _rise(running, batch)
            batch += 1
            contexts += todo
