"""Continuous batching as a pure state machine in domain time.

It models one engine: slots, KV cache, prefix cache, the waiting queue (first come, first served),
chunked prefill, preemption and KV leases. It reads no clock: `advance(to_ms)` returns the events up
to `to_ms`, whatever real time has passed.

Iterations with an unchanged batch are computed together: k decode iterations take k x t(batch,
context + (k - 1) / 2). This is exact if the time of a step is linear in the context, which holds
for a roofline between its kinks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable

from autoscaler.domain.validation import InvalidValue
from autoscaler.serving.batch_sequence import BatchIteration, BatchSequence, mean_context
from autoscaler.serving.engine_requests import (
    Event,
    Finished,
    FirstToken,
    LeaseExpired,
    Limits,
    Part,
    Timings,
    Tokens,
    Work,
)
from autoscaler.serving.kv_memory import BlockMemory, memory_of

_NEVER = float("inf")


class Batcher:
    """The batching machine. Times passed to it must not decrease."""

    def __init__(self, timings: Timings, limits: Limits) -> None:
        self._timings = timings
        self._limits = limits
        self._now_ms = 0.0
        self._waiting: deque[BatchSequence] = deque()
        self._loading: list[BatchSequence] = []
        self._running: list[BatchSequence] = []
        self._leases: dict[int, tuple[BatchSequence, float]] = {}
        self._current: BatchIteration | None = None
        self._memory = memory_of(limits)
        self._ids: set[int] = set()
        self._changed = False  # whether a request came or left since the last plan
        self.preemptions = 0

    # -- state ---------------------------------------------------------------------------------

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot or for KV cache."""
        return len(self._waiting)

    @property
    def loading(self) -> int:
        """Requests whose KV is still in transfer to this engine."""
        return len(self._loading)

    @property
    def held_leases(self) -> int:
        """Finished prefills whose KV waits for a decode instance."""
        return len(self._leases)

    @property
    def kv_usage(self) -> float:
        """Used share of the KV cache, leases included."""
        return self._memory.usage

    @property
    def cache_queries(self) -> int:
        """Prompt tokens that were looked up in the prefix cache."""
        return self._memory.queried_tokens if isinstance(self._memory, BlockMemory) else 0

    @property
    def cache_hits(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return self._memory.hit_tokens if isinstance(self._memory, BlockMemory) else 0

    @property
    def cache_blocks(self) -> int:
        """Blocks of the KV cache, 0 without a prefix cache."""
        return self._memory.cache.blocks if isinstance(self._memory, BlockMemory) else 0

    def next_event_ms(self) -> float:
        """Earliest time of a first token, an end or an expiry; inf if there is none.

        Events of further tokens may be earlier. Call it after `advance`, because an idle machine
        starts submitted requests only in `advance`.
        """
        expiry = min((expires for _, expires in self._leases.values()), default=_NEVER)
        arrival = min((s.ready_ms for s in self._loading), default=_NEVER)
        current = self._current
        if current is None:
            return min(expiry, arrival)
        if current.chunks or self._changed:
            return min(expiry, current.end_ms)
        shortest = min(s.tokens_left for s in current.decodes)
        context = mean_context(current.decodes) + 1.0
        rest = self._steps_ms(shortest - 1, len(current.decodes), context)
        return min(expiry, current.end_ms + rest, max(arrival, current.end_ms))

    # -- operations ----------------------------------------------------------------------------

    def submit(self, work: Work) -> None:
        """Queue a request at the time of the last `advance`.

        Raises InvalidValue if the request would never fit the KV cache, or if its id is in use.
        """
        need = work.prompt_tokens + work.output_tokens
        if not self._memory.could_hold(need):
            raise InvalidValue("tokens", need, f"at most {self._limits.kv_tokens} (KV cache)")
        if work.id in self._ids or work.id in self._leases:
            raise InvalidValue("request id", work.id, "one that is not in use")
        self._changed = True
        self._ids.add(work.id)
        self._waiting.append(BatchSequence(work, todo=work.prompt_tokens))

    def abort(self, request: int) -> bool:
        """Drop a request; False if there is no such request."""
        if request not in self._ids:
            return False
        self._changed = True
        self._ids.discard(request)
        for group in (self._waiting, self._loading, self._running):
            for sequence in group:
                if sequence.work.id == request:
                    group.remove(sequence)
                    self._memory.free(sequence)
                    return True
        return False

    def release(self, request: int) -> bool:
        """Free the KV of a finished prefill after its transfer; False if the lease has ended."""
        held = self._leases.pop(request, None)
        if held is None:
            return False
        self._memory.free(held[0])
        self._changed = True
        return True

    def extend(self, request: int, until_ms: float) -> bool:
        """Keep the KV of a finished prefill until `until_ms` at least; False if the lease has
        ended."""
        held = self._leases.get(request)
        if held is None:
            return False
        self._leases[request] = (held[0], max(held[1], until_ms))
        return True

    def advance(self, to_ms: float) -> list[Event]:
        """Run until `to_ms` and return the events, in order of time.

        An iteration that ends after `to_ms` stays in progress, and requests submitted meanwhile
        join after its end.
        """
        if to_ms < self._now_ms:
            raise InvalidValue("to_ms", to_ms, f"at least {self._now_ms} (time never runs back)")
        out: list[Event] = []
        while True:
            if self._current is None:
                if not self._plan(to_ms, out):
                    break
                continue
            if self._current.end_ms > to_ms:
                break
            self._complete(self._current, out)
        self._expire(to_ms, out)
        self._now_ms = to_ms
        out.sort(key=lambda event: event.at_ms)
        return out

    # -- inside -------------------------------------------------------------------------------

    def _plan(self, to_ms: float, out: list[Event]) -> bool:
        """Start the next iteration, or skip several at once. False if nothing happens until
        `to_ms`."""
        now = self._now_ms
        self._changed = False
        self._expire(now, out)
        self._join_arrived(now)
        self._make_room_to_grow()
        decodes = [s for s in self._running if s.todo == 0]
        chunks = self._schedule_prompts(decodes)
        if chunks:
            self._grow(decodes)
            self._current = BatchIteration(now + self._mixed_ms(decodes, chunks), decodes, chunks)
            return True
        if decodes:
            self._decode(decodes, to_ms, out)
            return True
        wake = min((s.ready_ms for s in self._loading), default=_NEVER)
        if self._waiting:
            wake = min(wake, min((at for _, at in self._leases.values()), default=_NEVER))
        if wake > to_ms:
            return False
        self._now_ms = max(now, wake)
        return True

    def _decode(self, decodes: list[BatchSequence], to_ms: float, out: list[Event]) -> None:
        """Run decode iterations while the batch is unchanged, or start one that ends after
        `to_ms`."""
        now, batch = self._now_ms, len(decodes)
        context = mean_context(decodes)
        steps = self._unchanged_steps(decodes, context)
        done = bisect_right(
            range(1, steps + 1), to_ms - now, key=lambda k: self._steps_ms(k, batch, context)
        )
        if done == 0:
            self._grow(decodes)
            end_ms = now + self._steps_ms(1, batch, context)
            self._current = BatchIteration(end_ms, decodes, [])
            return
        first_ms = now + self._steps_ms(1, batch, context)
        end_ms = now + self._steps_ms(done, batch, context)
        for sequence in decodes:
            self._memory.grow(sequence, done - 1 + sequence.growth)
            sequence.context += done
            self._memory.note_computed(sequence, sequence.context)
            self._emit(sequence, done, first_ms, end_ms, out)
        self._now_ms = end_ms

    def _unchanged_steps(self, decodes: list[BatchSequence], context: float) -> int:
        """Number of iterations until a sequence ends, the KV cache is full, or another sequence may
        join."""
        batch = len(decodes)
        steps = min(s.tokens_left for s in decodes)
        steps = min(steps, self._memory.steps_until_full(decodes))
        joins = min((s.ready_ms for s in self._loading), default=_NEVER)
        if self._waiting:
            joins = min(joins, min((at for _, at in self._leases.values()), default=_NEVER))
        if joins < _NEVER:
            # The iteration in progress at that time is still completed.
            before = bisect_left(
                range(1, steps + 1),
                joins - self._now_ms,
                key=lambda k: self._steps_ms(k, batch, context),
            )
            steps = min(steps, before + 1)
        return max(1, steps)

    def _steps_ms(self, steps: int, batch: int, context: float) -> float:
        if steps <= 0:
            return 0.0
        return steps * self._timings.decode_ms(batch, context + 0.5 * (steps - 1))

    def _mixed_ms(
        self, decodes: list[BatchSequence], chunks: list[tuple[BatchSequence, int]]
    ) -> float:
        """Time of an iteration with several prompt chunks, computed as one chunk with the same
        attention cost.

        The attention cost of n tokens after c cached tokens is proportional to n (c + n / 2). The
        replacement chunk has N = sum n tokens and the context C for which N (C + N / 2) equals the
        sum of these costs.
        """
        tokens = sum(n for _, n in chunks)
        seen = sum(n * (s.context + 0.5 * n) for s, n in chunks)
        context = seen / tokens - 0.5 * tokens
        if not decodes:
            return self._timings.prefill_ms(tokens, context)
        return self._timings.mixed_ms(tokens, context, len(decodes), mean_context(decodes))

    def _complete(self, iteration: BatchIteration, out: list[Event]) -> None:
        self._current = None
        self._now_ms = now = iteration.end_ms
        for sequence in iteration.decodes:
            if sequence.work.id in self._ids:
                self._emit(sequence, 1, now, now, out)
        for sequence, tokens in iteration.chunks:
            if sequence.work.id not in self._ids:
                continue
            sequence.todo -= tokens
            sequence.context += tokens
            if sequence.todo == 0:
                self._emit(sequence, 1, now, now, out)

    def _emit(
        self, sequence: BatchSequence, count: int, first_ms: float, last_ms: float, out: list[Event]
    ) -> None:
        request = sequence.work.id
        if sequence.produced == 0:
            out.append(FirstToken(request, first_ms, sequence.cached))
            if count > 1:
                out.append(Tokens(request, count - 1, last_ms))
        else:
            out.append(Tokens(request, count, last_ms))
        sequence.produced += count
        if sequence.tokens_left > 0:
            return
        self._running.remove(sequence)
        self._ids.discard(request)
        if sequence.work.part is Part.PREFILL:
            self._leases[request] = (sequence, last_ms + self._limits.lease_ms)
        else:
            self._memory.free(sequence)
        out.append(Finished(request, last_ms))

    def _grow(self, decodes: Iterable[BatchSequence]) -> None:
        for sequence in decodes:
            sequence.context += 1
            self._memory.grow(sequence, sequence.growth)
            self._memory.note_computed(sequence, sequence.context)

    def _make_room_to_grow(self) -> None:
        """Preempt the newest sequences until every decode can add its token. Preempted sequences
        start again, as in vLLM."""
        while self._running:
            if self._memory.can_grow([s for s in self._running if s.todo == 0]):
                return
            victim = self._running.pop()
            self._memory.free(victim)
            victim.was_preempted = True
            # All tokens of the sequence so far must be computed again as a prompt.
            victim.todo = victim.work.prompt_tokens + victim.produced
            victim.context = 0
            victim.ready_ms = -1.0
            self._waiting.appendleft(victim)
            self.preemptions += 1

    def _schedule_prompts(self, decodes: list[BatchSequence]) -> list[tuple[BatchSequence, int]]:
        """Choose the prompt chunks of this iteration: first prompts in progress, then the head of
        the queue."""
        budget = self._limits.batched_tokens - len(decodes)
        chunks = []
        for sequence in self._running:
            if sequence.todo and budget > 0:
                chunks.append(self._chunk(sequence, budget))
                budget -= chunks[-1][1]
        while self._waiting and budget > 0:
            head = self._waiting[0]
            if len(self._running) + len(self._loading) >= self._limits.max_seqs:
                break
            if not self._memory.admit(head, decodes):
                break  # first come, first served: no request overtakes the first one
            self._waiting.popleft()
            if head.work.part is Part.DECODE and head.ready_ms >= 0.0:
                head.ready_ms = self._now_ms + head.work.transfer_ms
                self._loading.append(head)
                continue
            self._running.append(head)
            chunks.append(self._chunk(head, budget))
            budget -= chunks[-1][1]
        return chunks

    def _chunk(self, sequence: BatchSequence, budget: int) -> tuple[BatchSequence, int]:
        """The next part of the prompt, at most `budget` tokens. Later prompts of this iteration
        find its blocks in the prefix cache, as in vLLM."""
        tokens = min(sequence.todo, budget)
        self._memory.note_computed(sequence, sequence.context + tokens)
        return sequence, tokens

    def _join_arrived(self, now: float) -> None:
        for sequence in [s for s in self._loading if s.ready_ms <= now]:
            self._loading.remove(sequence)
            # The KV was transferred without that of the last prompt token, which the first step
            # computes.
            sequence.context, sequence.todo = sequence.todo - 1, 0
            self._running.append(sequence)

    def _expire(self, now: float, out: list[Event]) -> None:
        for request, (sequence, expires) in list(self._leases.items()):
            if expires <= now:
                del self._leases[request]
                self._memory.free(sequence)
                out.append(LeaseExpired(request, expires))
