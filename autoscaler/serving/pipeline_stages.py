"""Several batching machines as one engine: a pipeline works on as many batches as it has stages.

Owns who goes into which batch: a request stays in the one that had the fewest when it came. Knows
no stages; that an iteration passes all of them is in the machines' timings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from autoscaler.serving.batching import Batcher
from autoscaler.serving.engine_requests import Event, Finished, LeaseExpired, Part, Work


class Machine(Protocol):
    """What `batching.Batcher` and its compiled double have in common."""

    @property
    def held(self) -> int: ...
    def next_event_ms(self) -> float: ...
    def submit(self, work: Work) -> None: ...
    def release(self, request: int) -> bool: ...
    def extend(self, request: int, until_ms: float) -> bool: ...
    def advance(self, to_ms: float) -> Sequence[Event]: ...


_M = TypeVar("_M", bound=Machine)


class Lanes(Generic[_M]):
    """`lanes` as one machine; each method is what it is of one of them."""

    def __init__(self, lanes: Sequence[_M]) -> None:
        self._lanes = lanes
        self._inside = [0] * len(lanes)
        self._of: dict[int, tuple[int, Part]] = {}

    @property
    def held(self) -> int:
        """Finished prefills whose KV is held for a decode instance."""
        return sum(lane.held for lane in self._lanes)

    def next_event_ms(self) -> float:
        """Earliest time at which something can come out; inf if nothing is inside."""
        return min(lane.next_event_ms() for lane in self._lanes)

    def submit(self, work: Work) -> None:
        """Queue a request; InvalidValue: its tokens would never fit, or its id is in use."""
        number = self._inside.index(min(self._inside))
        if work.id in self._of:
            number = self._of[work.id][0]  # which refuses it
        self._lanes[number].submit(work)
        self._inside[number] += 1
        self._of[work.id] = number, work.part

    def advance(self, to_ms: float) -> list[Event]:
        """Run until `to_ms`; what came out, in order of time."""
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
        """Give back the KV of a finished prefill; False if it is gone."""
        number, _ = self._of.pop(request, (0, Part.WHOLE))
        return self._lanes[number].release(request)

    def extend(self, request: int, until_ms: float) -> bool:
        """Hold the KV of a finished prefill until `until_ms` at least; False if it is gone."""
        number, _ = self._of.get(request, (0, Part.WHOLE))
        return self._lanes[number].extend(request, until_ms)


class BatcherLanes(Lanes[Batcher]):
    """The same with what a served engine tells of itself."""

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
        """Requests whose KV is still on its way here."""
        return sum(lane.loading for lane in self._lanes)

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache that is taken, by sequences and by leases."""
        return sum(lane.kv_usage for lane in self._lanes) / len(self._lanes)

    @property
    def preemptions(self) -> int:
        """Sequences that lost their KV and began again."""
        return sum(lane.preemptions for lane in self._lanes)

    def abort(self, request: int) -> bool:
        """Drop a request wherever it is; False if there is none."""
        number, _ = self._of.get(request, (0, Part.WHOLE))
        found = self._lanes[number].abort(request)
        if found:
            self._inside[number] -= 1
            del self._of[request]
        return found
