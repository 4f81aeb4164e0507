"""The simulated engine: drives the batching machine by the clock and answers requests.

It passes requests to the machine, combines writes, and implements KV hand-over and metrics.
`engine_server` listens for HTTP requests. Times are domain ms since the time base's origin; the
machine has its own clock.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import (
    Event,
    Finished,
    FirstToken,
    LeaseExpired,
    Part,
    Tokens,
    Work,
)
from autoscaler.serving.engine_setup import InvalidValue
from autoscaler.serving.pipeline_stages import PipelinedEngine
from executors.engines.simulated.answer_stream import Answer
from executors.engines.simulated.batching_clock import MachineClock
from executors.engines.simulated.completions_api import Job, RemoteKv
from executors.engines.simulated.prefix_blocks import block_hashes
from executors.engines.simulated.request_parameters import ApiError
from executors.engines.simulated.vllm_metrics import Gauges, Metrics
from topics.time_base import TimeBase

_MIN_WRITE_GAP_S = 0.015

FetchKv = Callable[[RemoteKv, float], Awaitable[bool]]
"""Function that fetches KV from the engine that holds it, in the given domain ms; returns False if
the KV is gone."""


@dataclass(slots=True, eq=False)
class _Call:
    """One request of a client with all its choices. entering: the timer while the request is read
    and tokenised; fetching: the task that fetches its KV. In both cases the request is not in the
    machine yet."""

    answer: Answer
    arrived_ms: float
    flights: set[int] = field(default_factory=set)
    entering: asyncio.TimerHandle | None = None
    fetching: asyncio.Task[None] | None = None


@dataclass(slots=True, eq=False)
class _Flight:
    """One choice in the machine. pending: number of generated tokens that are not written yet."""

    call: _Call
    choice: int
    first_ms: float = 0.0
    last_ms: float = 0.0
    pending: int = 0
    written_s: float = 0.0

    def write(self) -> None:
        self.call.answer.write(self.choice, self.pending)
        self.pending = 0


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of this engine in kv_transfer_params and response ids."""

    model: str
    engine_id: str
    host: str
    port: int
    tensor_parallel: int


class Engine:
    """Accepts requests and produces their tokens.

    first_token_ms: domain ms that a request spends outside of iterations before its first token, as
    in `StepTimes`. This engine spends all of it before the request enters the machine; with a
    prefill/decode pair, before the prefill. flush_s: real seconds between writes of running
    streams. recompute: whether to compute a prompt here if its KV is unavailable, instead of
    failing the request. block_tokens: tokens of a block in the
    machine's prefix cache, 0 = no prefix cache.
    """

    def __init__(
        self,
        batcher: Batcher | PipelinedEngine,
        time_base: TimeBase,
        identity: Identity,
        transfer_ms: Callable[[int], float],
        fetch_kv: FetchKv,
        flush_s: float = 0.03,
        recompute: bool = False,
        first_token_ms: float = 0.0,
        block_tokens: int = 0,
    ) -> None:
        self.metrics = Metrics()
        self._batcher = batcher
        self._time_base = time_base
        self._identity = identity
        self._transfer_ms = transfer_ms
        self._fetch_kv = fetch_kv
        self._flush_s = max(flush_s, _MIN_WRITE_GAP_S)
        self._recompute = recompute
        self._block_tokens = block_tokens
        self._entry_s = time_base.real_s(first_token_ms / 1e3)
        self._loop = asyncio.get_running_loop()
        self._clock = MachineClock(time_base, self._loop.time)
        self._calls: set[_Call] = set()
        self._flights: dict[int, _Flight] = {}
        self._parked: list[tuple[_Call, Job]] = []
        self._paused = False
        self._timer: asyncio.TimerHandle | None = None
        self._ids = itertools.count(1)
        self._next_flush_s = 0.0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and not yet answered."""
        return len(self._calls)

    @property
    def paused(self) -> bool:
        """Whether new requests wait for `resume`."""
        return self._paused

    def now_ms(self) -> float:
        """Domain ms since the origin."""
        return self._clock.now_ms()

    def submit(self, job: Job, answer: Answer) -> None:
        """Accept a request and answer it through `answer`."""
        call = _Call(answer, self.now_ms())
        self._calls.add(call)
        self.idle.clear()
        answer.responder.on_disconnect = lambda: self._disconnected(call)
        if self._paused:
            self._parked.append((call, job))
        else:
            self._begin(call, job)

    def give_kv(self, request: int, transfer_ms: float) -> bool:
        """Keep the KV of prefill `request` for `transfer_ms` while a decode instance fetches it,
        then drop the KV.

        Returns False if the engine no longer holds the KV. In vLLM, the decode instance then reads
        blocks that may hold other data, so the request succeeds and only a metric counts the fault.
        """
        self._step()
        held = self._batcher.extend(request, self._clock.machine_ms() + transfer_ms)
        if held:
            real_s = self._time_base.real_s(transfer_ms / 1e3)
            self._loop.call_later(real_s, self._drop_kv, request)
        else:
            self.metrics.kv_late += 1
        return held

    def pause(self, stop_machine: bool = True) -> None:
        """Let new requests wait until `resume`. stop_machine: whether running requests stop too."""
        self._paused = True
        if stop_machine:
            self._step()
            self._clock.stop()
            self._set_timer()

    def resume(self) -> None:
        """Continue, including the waiting requests."""
        self._clock.resume()
        self._paused = False
        parked, self._parked = self._parked, []
        for call, job in parked:
            if call in self._calls:
                self._begin(call, job)
        self._step()

    async def drained(self) -> None:
        """Wait until the machine has no requests. Requests that arrived during a pause do not
        count."""
        while any(call.flights or call.entering or call.fetching for call in self._calls):
            await asyncio.sleep(0.01)

    def cut(self) -> None:
        """End all requests in flight at once: finish reason "abort", status 200, as in vLLM."""
        for call in list(self._calls):
            flights = [self._flights.pop(request) for request in sorted(call.flights)]
            for request in call.flights:
                self._batcher.abort(request)
            if not flights:  # no token exists yet
                self._fail(call, ApiError(500, "the engine is shutting down"))
                continue
            self._calls.discard(call)
            for flight in flights:
                self.metrics.finished["abort"] += 1
                call.answer.finish(flight.choice, flight.pending, "abort")
        self._maybe_idle()

    def break_off(self, message: str) -> None:
        """Fail all requests in flight."""
        for call in list(self._calls):
            self._fail(call, ApiError(500, message))

    def metrics_text(self) -> bytes:
        """The text of /metrics."""
        self._step()
        batcher = self._batcher
        gauges = Gauges(
            running=batcher.running,
            waiting=batcher.waiting,
            deferred=batcher.loading + sum(call.fetching is not None for call in self._calls),
            kv_usage=batcher.kv_usage,
            held=batcher.held_leases,
            cache_queries=batcher.cache_queries,
            cache_hits=batcher.cache_hits,
            blocks=batcher.cache_blocks,
            block_tokens=self._block_tokens,
        )
        return self.metrics.text(self._identity.model, gauges, batcher.preemptions)

    # -- inside -------------------------------------------------------------------------------

    def _begin(self, call: _Call, job: Job) -> None:
        if job.remote is None:
            part = Part.PREFILL if job.hold_kv else Part.WHOLE
            call.entering = self._loop.call_later(self._entry_s, self._enter, call, job, part)
            return
        call.fetching = self._loop.create_task(self._fetch(call, job, job.remote))

    def _enter(self, call: _Call, job: Job, part: Part, transfer_ms: float = 0.0) -> None:
        call.entering = None
        self._step()
        for choice in range(job.samples):
            request, prompt = next(self._ids), job.prompts[choice // job.n]
            try:
                blocks = self._blocks(call.answer, choice)
                self._batcher.submit(
                    Work(request, prompt, job.output_tokens, part, transfer_ms, blocks)
                )
            except InvalidValue as error:
                self._fail(call, ApiError(400, str(error)))
                return
            call.flights.add(request)
            self._flights[request] = _Flight(call, choice)
            self.metrics.prompt_tokens += prompt
        self._step()

    def _blocks(self, answer: Answer, choice: int) -> list[int]:
        job, size = answer.job, self._block_tokens
        if not size or not job.texts:
            return []
        return block_hashes(answer.model, job.texts[choice // job.n], job.output_tokens, size)

    async def _fetch(self, call: _Call, job: Job, remote: RemoteKv) -> None:
        began_ms, transfer_ms = self.now_ms(), self._transfer_ms(remote.tokens)
        who = self._identity
        # vLLM refuses a transfer to itself
        to_itself = (remote.host, remote.port) == (who.host, who.port)
        there = not to_itself and await self._fetch_kv(remote, transfer_ms)
        call.fetching = None
        if there:
            self.metrics.transferred_tokens += sum(job.prompts) * job.n
            # Wait only for the rest of the transfer: at a high speed, the real time of the fetch
            # was much domain time, in which the transfer made progress.
            rest_ms = max(0.0, transfer_ms - (self.now_ms() - began_ms))
            self._enter(call, job, Part.DECODE, rest_ms)
            return
        self.metrics.kv_failed += 1
        if self._recompute:
            self._enter(call, job, Part.WHOLE)
        else:
            self._fail(call, ApiError(500, "KV load failed: the prefill instance does not hold it"))

    def _drop_kv(self, request: int) -> None:
        self._batcher.release(request)
        self._step()

    def _disconnected(self, call: _Call) -> None:
        """Drop the request of a client that left. vLLM frees its slots and counts no abort."""
        self._drop(call)
        self._step()  # other requests may now be served before the timer is due
        self._maybe_idle()

    def _fail(self, call: _Call, error: ApiError) -> None:
        self.metrics.finished["error"] += 1
        self._drop(call)
        call.answer.fail(error)
        self._maybe_idle()

    def _drop(self, call: _Call) -> None:
        self._calls.discard(call)
        for coming in (call.entering, call.fetching):
            if coming is not None:
                coming.cancel()
        if call.flights:
            self._step()
        for request in call.flights:
            self._batcher.abort(request)
            self._flights.pop(request, None)
        call.flights.clear()

    def _maybe_idle(self) -> None:
        if self.in_flight == 0:
            self.idle.set()

    def _step(self) -> None:
        """Advance the machine to now, write its output, and set the next timer."""
        now_s = self._loop.time()
        for event in self._batcher.advance(self._clock.machine_ms()):
            self._deliver(event, now_s)
        if now_s >= self._next_flush_s:
            self._flush(now_s)
            self._next_flush_s = now_s + self._flush_s
        self._set_timer()

    def _flush(self, now_s: float) -> None:
        for flight in self._flights.values():
            if flight.pending and now_s - flight.written_s >= _MIN_WRITE_GAP_S:
                flight.write()
                flight.written_s = now_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self._batcher.next_event_ms()
        if at_ms == float("inf") or self._clock.stopped:
            return
        at_s = self._clock.real_s(at_ms)
        if any(flight.call.answer.job.stream for flight in self._flights.values()):
            at_s = min(at_s, self._next_flush_s)
        self._timer = self._loop.call_at(at_s, self._step)

    def _deliver(self, event: Event, now_s: float) -> None:
        if isinstance(event, LeaseExpired):
            self.metrics.kv_expired += 1
            return
        flight = self._flights.get(event.id)
        if flight is None:
            return
        at_ms = self._clock.domain_ms(event.at_ms)
        if isinstance(event, FirstToken):
            self.metrics.ttft.observe((at_ms - flight.call.arrived_ms) / 1e3)
            self.metrics.generation_tokens += 1
            if self._block_tokens:
                answer = flight.call.answer
                answer.cached_tokens = (answer.cached_tokens or 0) + event.cached_tokens
            flight.first_ms = flight.last_ms = at_ms
            flight.pending = 1
            if flight.call.answer.job.output_tokens > 1:
                flight.write()
                flight.written_s = now_s
                self._late(event.at_ms, now_s)
        elif isinstance(event, Tokens):
            gap_ms = (at_ms - flight.last_ms) / event.count
            self.metrics.inter_token.observe(gap_ms / 1e3, event.count)
            self.metrics.generation_tokens += event.count
            flight.last_ms = at_ms
            flight.pending += event.count
        else:
            self._finish(event, flight, at_ms, now_s)

    def _finish(self, event: Finished, flight: _Flight, at_ms: float, now_s: float) -> None:
        del self._flights[event.id]
        call = flight.call
        call.flights.discard(event.id)
        job = call.answer.job
        kv = self._kv_params(event.id, job) if job.hold_kv else None
        call.answer.finish(flight.choice, flight.pending, job.finish_reason, kv)
        self._late(event.at_ms, now_s)
        self.metrics.finished[job.finish_reason] += 1
        self.metrics.e2e.observe((at_ms - call.arrived_ms) / 1e3)
        if job.output_tokens > 1:
            per_token_ms = (at_ms - flight.first_ms) / (job.output_tokens - 1)
            self.metrics.per_output_token.observe(per_token_ms / 1e3)
        if not call.flights:
            self._calls.discard(call)
            self._maybe_idle()

    def _late(self, at_ms: float, now_s: float) -> None:
        self.metrics.late.observe((now_s - self._clock.real_s(at_ms)) * 1e3)

    def _kv_params(self, request: int, job: Job) -> dict[str, Any]:
        who = self._identity
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [[request]],
            "remote_engine_id": who.engine_id,
            "remote_request_id": f"{who.engine_id}-{request}",
            "remote_host": who.host,
            "remote_port": who.port,
            "tp_size": who.tensor_parallel,
            "remote_num_tokens": job.prompts[-1],
        }
