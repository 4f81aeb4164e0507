"""How much instances have to do: what this gateway sent them, and what they say of the others'.

Owns the count of requests in flight by instance, the slots that the routes give each, and who is
full by that. Endpoints are known without their slots (`serving.rings.bare`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.round_robin import Ring, bare
from topics.records import Endpoint


@dataclass(slots=True)
class Occupancy:
    """All instances of one model. full: those without a free slot."""

    full: set[Endpoint] = field(default_factory=set)
    _slots: Mapping[Endpoint, int] = field(default_factory=dict)
    _in_flight: dict[Endpoint, int] = field(default_factory=dict)
    _others: dict[Endpoint, int] = field(default_factory=dict)
    _held_kv: dict[Endpoint, int] = field(default_factory=dict)

    def bound(self, slots: Mapping[Endpoint, int], live: Collection[Endpoint]) -> None:
        """From now on instances have these `slots`; what is not `live` is forgotten, but for what
        is in flight there."""
        self._slots = slots
        for told in (self._others, self._held_kv):
            for end in told.keys() - live:
                del told[end]
        self.full = {end for end in slots if self._is_full(end)}

    def sent(self, endpoint: Endpoint) -> None:
        """One more request is in flight there until `done`."""
        self._in_flight[endpoint] = self._in_flight.get(endpoint, 0) + 1
        self._count(endpoint)

    def done(self, endpoint: Endpoint) -> None:
        """A request that was sent to `endpoint` has left it, whatever became of it."""
        left = self._in_flight.pop(endpoint) - 1
        if left:
            self._in_flight[endpoint] = left
        self._count(endpoint)

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests that were sent to `endpoint` and that are there still."""
        return self._in_flight.get(bare(endpoint), 0)

    def report(self, endpoint: Endpoint, requests: int, held_kv: int) -> None:
        """What `endpoint` says that it holds of all gateways. Requests beyond our own are others':
        they take slots, too."""
        self._others[endpoint] = max(0, requests - self._in_flight.get(endpoint, 0))
        self._held_kv[endpoint] = held_kv
        self._count(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Nobody knows any more what else `endpoint` holds."""
        if self._others.pop(endpoint, None) is not None:
            del self._held_kv[endpoint]
            self._count(endpoint)

    def told(self, endpoints: Iterable[Endpoint]) -> bool:
        """Whether all of them say what they hold."""
        return bool(self._others) and all(end in self._others for end in endpoints)

    def load(self, endpoint: Endpoint) -> float:
        """Requests and held KV that are known of."""
        told = self._others.get(endpoint, 0) + self._held_kv.get(endpoint, 0)
        return self._in_flight.get(endpoint, 0) + told

    def idle(self, ring: Ring, out: Iterable[Endpoint]) -> bool:
        """Whether one that is not `out` has nothing to do."""
        return any(
            end not in out and end not in self._in_flight and not self._others.get(end)
            for end in ring.endpoints
        )

    def busy(self, ring: Ring, out: Iterable[Endpoint]) -> bool:
        """Whether all that are not `out` have as much to do as they can; of one without a bound,
        anything at all."""
        return all(
            end in self.full if end in self._slots else self.load(end) > 0.0
            for end in ring.endpoints
            if end not in out
        )

    def _is_full(self, endpoint: Endpoint) -> bool:
        slots = self._slots.get(endpoint)
        if slots is None:
            return False
        return self._in_flight.get(endpoint, 0) + self._others.get(endpoint, 0) >= slots

    def _count(self, endpoint: Endpoint) -> None:
        if self._is_full(endpoint):
            self.full.add(endpoint)
        elif self.full:
            self.full.discard(endpoint)
