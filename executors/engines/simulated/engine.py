"""The simulated engine: drives the batching machine by the clock and answers requests.

Owns requests between HTTP and the machine, coalesced writes, KV hand-over and the metrics. Knows
no socket: `server.py` listens. Time inside is domain ms since the time base's origin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from autoscaler.serving.batching import Batcher
from autoscaler.serving.requests import (
    Event,
    Finished,
    FirstToken,
    LeaseExpired,
    Part,
    Tokens,
    Work,
)
from autoscaler.serving.setup import InvalidValue
from executors.engines.simulated.api import Answer, ApiError, Job, RemoteKv
from executors.engines.simulated.metrics import Gauges, Metrics
from topics.timebase import TimeBase

_MIN_WRITE_GAP_S = 0.015

FetchKv = Callable[[RemoteKv, float], Awaitable[bool]]
"""Ask the engine that holds a KV to give it within so many domain ms; False if it is gone."""


@dataclass(slots=True, eq=False)
class _Flight:
    """One request in the machine. pending: tokens not written yet."""

    answer: Answer
    arrived_ms: float
    first_ms: float = 0.0
    last_ms: float = 0.0
    pending: int = 0
    written_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this engine is to others: for kv_transfer_params and response ids."""

    model: str
    engine_id: str
    host: str
    port: int
    tensor_parallel: int


class Engine:
    """Requests in, tokens out. flush_s: real seconds between writes of running streams."""

    def __init__(
        self,
        batcher: Batcher,
        time_base: TimeBase,
        identity: Identity,
        transfer_ms: Callable[[int], float],
        fetch_kv: FetchKv,
        flush_s: float = 0.03,
    ) -> None:
        self.metrics = Metrics()
        self._batcher = batcher
        self._time_base = time_base
        self._origin_s = time_base.origin_mono_ns / 1e9
        self._identity = identity
        self._transfer_ms = transfer_ms
        self._fetch_kv = fetch_kv
        self._flush_s = max(flush_s, _MIN_WRITE_GAP_S)
        self._loop = asyncio.get_running_loop()
        self._flights: dict[int, _Flight] = {}
        self._fetching: dict[int, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._next_id = 0
        self._next_flush_s = 0.0
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def in_flight(self) -> int:
        """Requests that were accepted and not yet answered."""
        return len(self._flights) + len(self._fetching)

    def now_ms(self) -> float:
        """Domain ms since the origin, from the loop's monotonic clock."""
        return (self._loop.time() - self._origin_s) * 1e3 * self._time_base.speed

    def submit(self, job: Job, answer: Answer) -> None:
        """Take a request; its answer comes through `answer`."""
        self._next_id += 1
        request, now = self._next_id, self.now_ms()
        self.idle.clear()
        answer.responder.on_disconnect = lambda: self._abort(request)
        if job.remote is None:
            part = Part.PREFILL if job.hold_kv else Part.WHOLE
            self._enter(request, job, answer, now, part, 0.0)
            return
        task = self._loop.create_task(self._fetch(request, job, answer, job.remote, now))
        self._fetching[request] = task
        task.add_done_callback(lambda _: self._fetched(request))

    def give_kv(self, request: int, transfer_ms: float) -> bool:
        """A decode instance fetches the KV of prefill `request`: hold it so long, then drop it."""
        self._step()
        if not self._batcher.extend(request, self.now_ms() + transfer_ms):
            return False
        self._loop.call_later(self._time_base.real_s(transfer_ms / 1e3), self._drop_kv, request)
        return True

    def break_off(self, message: str) -> None:
        """Fail everything in flight."""
        for task in list(self._fetching.values()):
            task.cancel()
        for request, flight in list(self._flights.items()):
            self._batcher.abort(request)
            self._leave(request, flight, ApiError(500, message))

    def metrics_text(self) -> bytes:
        """The exposition of /metrics now."""
        self._step()
        batcher = self._batcher
        gauges = Gauges(
            running=batcher.running,
            waiting=batcher.waiting,
            deferred=batcher.loading + len(self._fetching),
            kv_usage=batcher.kv_usage,
            held=batcher.held,
        )
        return self.metrics.text(self._identity.model, gauges, batcher.preemptions)

    # -- inside -------------------------------------------------------------------------------

    def _enter(
        self, request: int, job: Job, answer: Answer, arrived: float, part: Part, transfer: float
    ) -> None:
        self._flights[request] = flight = _Flight(answer, arrived)
        self._step()
        try:
            self._batcher.submit(
                Work(request, job.prompt_tokens, job.output_tokens, part, transfer)
            )
        except InvalidValue as error:
            self._leave(request, flight, ApiError(400, str(error)))
            return
        self.metrics.prompt_tokens += job.prompt_tokens
        self._step()

    async def _fetch(
        self, request: int, job: Job, answer: Answer, remote: RemoteKv, arrived: float
    ) -> None:
        transfer = self._transfer_ms(remote.tokens)
        try:
            there = await self._fetch_kv(remote, transfer)
        except asyncio.CancelledError:
            answer.fail(ApiError(500, "the engine is shutting down"))
            raise
        if answer.responder.done:
            return
        if not there:
            self.metrics.kv_failed += 1
            self.metrics.finished["error"] += 1
            answer.fail(ApiError(500, "KV load failed: the prefill instance does not hold it"))
            return
        self.metrics.transferred_tokens += job.prompt_tokens
        # Asking took real time, which at a high speed is a lot of domain time: the KV was on its
        # way meanwhile.
        rest = max(0.0, transfer - (self.now_ms() - arrived))
        self._enter(request, job, answer, arrived, Part.DECODE, rest)

    def _fetched(self, request: int) -> None:
        del self._fetching[request]
        self._maybe_idle()

    def _drop_kv(self, request: int) -> None:
        self._batcher.release(request)
        self._step()

    def _abort(self, request: int) -> None:
        flight = self._flights.pop(request, None)
        if flight is not None:
            self._step()
            self._batcher.abort(request)
            self._step()  # those behind it may be served sooner than the timer was set to
            self.metrics.finished["abort"] += 1
        task = self._fetching.get(request)
        if task is not None:
            task.cancel()
        self._maybe_idle()

    def _leave(self, request: int, flight: _Flight, error: ApiError) -> None:
        self._flights.pop(request, None)
        self.metrics.finished["error"] += 1
        flight.answer.fail(error)
        self._maybe_idle()

    def _maybe_idle(self) -> None:
        if self.in_flight == 0:
            self.idle.set()

    def _step(self) -> None:
        """Bring the machine up to now, write what came out, set the next timer."""
        now_s = self._loop.time()
        for event in self._batcher.advance((now_s - self._origin_s) * 1e3 * self._time_base.speed):
            self._deliver(event, now_s)
        if now_s >= self._next_flush_s:
            self._flush(now_s)
            self._next_flush_s = now_s + self._flush_s
        self._set_timer()

    def _flush(self, now_s: float) -> None:
        for flight in self._flights.values():
            if flight.pending and now_s - flight.written_s >= _MIN_WRITE_GAP_S:
                flight.answer.write(flight.pending)
                flight.pending = 0
                flight.written_s = now_s

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        at_ms = self._batcher.next_event_ms()
        if at_ms == float("inf"):
            return
        at_s = self._origin_s + at_ms / 1e3 / self._time_base.speed
        if any(flight.answer.job.stream for flight in self._flights.values()):
            at_s = min(at_s, self._next_flush_s)
        self._timer = self._loop.call_at(at_s, self._step)

    def _deliver(self, event: Event, now_s: float) -> None:
        if isinstance(event, LeaseExpired):
            self.metrics.kv_expired += 1
            return
        flight = self._flights.get(event.id)
        if flight is None:
            return
        if isinstance(event, FirstToken):
            self.metrics.ttft.observe((event.at_ms - flight.arrived_ms) / 1e3)
            self.metrics.generation_tokens += 1
            flight.first_ms = flight.last_ms = event.at_ms
            if flight.answer.job.output_tokens > 1:
                flight.answer.write(1)
                flight.written_s = now_s
                self._late(event.at_ms, now_s)
            else:
                flight.pending = 1
        elif isinstance(event, Tokens):
            gap_ms = (event.at_ms - flight.last_ms) / event.count
            self.metrics.inter_token.observe(gap_ms / 1e3, event.count)
            self.metrics.generation_tokens += event.count
            flight.last_ms = event.at_ms
            flight.pending += event.count
        else:
            self._finish(event, flight, now_s)

    def _finish(self, event: Finished, flight: _Flight, now_s: float) -> None:
        del self._flights[event.id]
        job = flight.answer.job
        kv = self._kv_params(event.id, job) if job.hold_kv else None
        flight.answer.finish(flight.pending, kv)
        self._late(event.at_ms, now_s)
        self.metrics.finished[job.finish_reason] += 1
        self.metrics.e2e.observe((event.at_ms - flight.arrived_ms) / 1e3)
        if job.output_tokens > 1:
            per_token_ms = (event.at_ms - flight.first_ms) / (job.output_tokens - 1)
            self.metrics.per_output_token.observe(per_token_ms / 1e3)
        self._maybe_idle()

    def _late(self, at_ms: float, now_s: float) -> None:
        due_s = self._origin_s + at_ms / 1e3 / self._time_base.speed
        self.metrics.late.observe((now_s - due_s) * 1e3)

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
            "remote_num_tokens": job.prompt_tokens,
        }
