"""One engine process in virtual time: runs the batching model and wakes up at its next event.

Reports the progress of each request to the `Job` that was submitted with the request.
"""

from __future__ import annotations

from typing import Protocol

from autoscaler.performance.timing_grid import timing_grid
from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Finished, FirstToken, Work
from autoscaler.serving.engine_setup import EngineSetup
from autoscaler.serving.pipeline_stages import BatchingMachine, PipelinedBatcher
from autoscaler.simulation.compiled_batching import CompiledBatcher
from autoscaler.simulation.event_queue import EventQueue

_NEVER = float("inf")
# minimum delay of a wake-up, because rounding may put the event just after its wake-up
_MIN_STEP_MS = 1e-3


class Job(Protocol):
    """Receives the progress of one request. Times in ms of the event queue."""

    def first_token(self, at_ms: float, cached_tokens: int) -> None:
        """The engine has produced the first token. cached_tokens: prompt tokens that came from its
        prefix cache."""
        ...

    def finished(self, at_ms: float) -> None:
        """The engine has produced all tokens. After a prefill, the engine holds the KV cache."""
        ...

    def broken(self) -> None:
        """The engine was lost."""
        ...


class SimEngine:
    """A running engine. address: "host:port", unique among all engines of a simulation. finished:
    number of requests that it has finished."""

    def __init__(self, setup: EngineSetup, events: EventQueue, address: str) -> None:
        self.setup = setup
        self.address = address
        self._events = events
        self._batcher = _batcher(setup)
        self._batcher.advance(events.now_ms)
        self._jobs: dict[int, Job] = {}
        self._due_ms = _NEVER
        self._alive = True
        self.finished = 0

    @property
    def in_flight(self) -> int:
        """Requests in the engine."""
        return len(self._jobs)

    @property
    def held_kv(self) -> int:
        """Number of finished prefills whose KV cache the engine still holds."""
        return self._batcher.held_leases

    def submit(self, work: Work, job: Job) -> None:
        """Accept a request. Raises InvalidValue if it would never fit the KV cache."""
        self._step()
        self._batcher.submit(work)
        self._jobs[work.id] = job
        if self.setup.limits.block_tokens or self._batcher.next_event_ms() <= self._events.now_ms:
            self._step()
        self._schedule()

    def transfer_kv(self, request: int, transfer_ms: float) -> bool:
        """Transfer the KV cache of prefill `request` to a decode instance; False if the cache is
        gone."""
        until_ms = self._events.now_ms + transfer_ms
        if not self._alive or not self._batcher.extend(request, until_ms):
            return False
        self._events.at(until_ms, lambda: self._drop_kv(request))
        return True

    def die(self) -> None:
        """End the process. All of its requests break."""
        self._alive = False
        self._due_ms = _NEVER
        jobs = list(self._jobs.values())
        self._jobs.clear()
        for job in jobs:
            job.broken()

    def _drop_kv(self, request: int) -> None:
        if self._alive:
            self._step()
            self._batcher.release(request)
            self._step()
            self._schedule()

    def _wake(self) -> None:
        if self._events.now_ms == self._due_ms:
            self._due_ms = _NEVER
            self._step()
            self._schedule()

    def _step(self) -> None:
        for event in self._batcher.advance(self._events.now_ms):
            if isinstance(event, FirstToken):
                self._jobs[event.id].first_token(event.at_ms, event.cached_tokens)
            elif isinstance(event, Finished):
                self.finished += 1
                self._jobs.pop(event.id).finished(event.at_ms)

    def _schedule(self) -> None:
        if not self._alive:
            return
        now_ms, due_ms = self._events.now_ms, self._batcher.next_event_ms()
        if due_ms <= now_ms:
            due_ms = now_ms + _MIN_STEP_MS
        if due_ms != self._due_ms:
            self._due_ms = due_ms
            if due_ms < _NEVER:
                self._events.at(due_ms, self._wake)


def _batcher(setup: EngineSetup) -> BatchingMachine:
    """The batching machine of `setup`. Only the reference machine has a prefix cache."""
    lanes: list[BatchingMachine]
    if setup.limits.block_tokens:
        lanes = [Batcher(setup.times, setup.limits) for _ in range(setup.lanes)]
    else:
        grid = timing_grid(setup.times, setup.limits.batched_tokens)
        lanes = [CompiledBatcher(grid, setup.limits) for _ in range(setup.lanes)]
    return lanes[0] if len(lanes) == 1 else PipelinedBatcher(lanes)
