"""Several batching machines as one engine, because a pipeline with n stages works on n batches at a
time. A new request joins the batch with the fewest requests and stays there. The timings of each
machine cover an iteration through all stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Event, Finished, LeaseExpired, Part, Work


class BatchingMachine(Protocol):
    """The interface that `batching.Batcher` and `CompiledBatcher` share."""

    @property
    def held_leases(self) -> int: ...
    def next_event_ms(self) -> float: ...
    def submit(self, work: Work) -> None: ...
    def release(self, request: int) -> bool: ...
    def extend(self, request: int, until_ms: float) -> bool: ...
    def advance(self, to_ms: float) -> Sequence[Event]: ...


_M = TypeVar("_M", bound=BatchingMachine)


class PipelinedBatcher(Generic[_M]):
    """One engine made of `lanes` batching machines. Figures are sums over all machines; other
    methods use the machine of the request."""

    def __init__(self, lanes: Sequence[_M]) -> None:
        self._lanes = lanes
        self._inside = [0] * len(lanes)
        self._of: dict[int, tuple[int, Part]] = {}

    @property
    def held_leases(self) -> int:
        """Finished prefills whose KV waits for a decode instance."""
        return sum(lane.held_leases for lane in self._lanes)

    def next_event_ms(self) -> float:
        """Earliest time of an event; inf if no request is in the engine."""
        return min(lane.next_event_ms() for lane in self._lanes)

    def submit(self, work: Work) -> None:
        """Queue a request. Raises InvalidValue if the request would never fit the KV cache, or if
        its id is in use."""
        number = self._inside.index(min(self._inside))
        if work.id in self._of:
            number = self._of[work.id][0]  # the lane that has the id refuses it
        self._lanes[number].submit(work)
        self._inside[number] += 1
        self._of[work.id] = number, work.part

    def advance(self, to_ms: float) -> list[Event]:
        """Run until `to_ms` and return the events, in order of time."""
        out = [event for lane in self._lanes for event in lane.advance(to_ms)]
        out.sort(key=lambda event: event.at_ms)
        for event in out:
            if isinstance(event, Finished):
                number, part = self._of[event.id]
                self._inside[number] -= 1
                if part is not Part.PREFILL:
                    del self._of[event.id]
            elif isinstance(event, LeaseExpired):
                self._of.pop(event.id, None)
        return out

    def release(self, request: int) -> bool:
        """Free the KV of a finished prefill; False if the lease has ended."""
        number, _ = self._of.pop(request, (0, Part.WHOLE))
        return self._lanes[number].release(request)

    def extend(self, request: int, until_ms: float) -> bool:
        """Keep the KV of a finished prefill until `until_ms` at least; False if the lease has
        ended."""
        number, _ = self._of.get(request, (0, Part.WHOLE))
        return self._lanes[number].extend(request, until_ms)


class PipelinedEngine(PipelinedBatcher[Batcher]):
    """A `PipelinedBatcher` of `Batcher`s, with the figures for an engine's metrics page."""

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return sum(lane.running for lane in self._lanes)

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot or for KV cache."""
        return sum(lane.waiting for lane in self._lanes)

    @property
    def loading(self) -> int:
        """Requests whose KV is still in transfer to this engine."""
        return sum(lane.loading for lane in self._lanes)

    @property
    def kv_usage(self) -> float:
        """Used share of the KV cache, leases included."""
        return sum(lane.kv_usage for lane in self._lanes) / len(self._lanes)

    @property
    def preemptions(self) -> int:
        """Number of times that a sequence lost its KV and started again."""
        return sum(lane.preemptions for lane in self._lanes)

    @property
    def cache_queries(self) -> int:
        """Prompt tokens that were looked up in the prefix cache."""
        return sum(lane.cache_queries for lane in self._lanes)

    @property
    def cache_hits(self) -> int:
        """Prompt tokens that came from the prefix cache."""
        return sum(lane.cache_hits for lane in self._lanes)

    @property
    def cache_blocks(self) -> int:
        """Blocks of the KV cache, 0 without a prefix cache."""
        return sum(lane.cache_blocks for lane in self._lanes)

    def abort(self, request: int) -> bool:
        """Drop a request; False if there is no such request."""
        number, _ = self._of.get(request, (0, Part.WHOLE))
        found = self._lanes[number].abort(request)
        if found:
            self._inside[number] -= 1
            del self._of[request]
        return found
