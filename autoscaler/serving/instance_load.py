"""Load of the instances of one model: requests in flight from this gateway, and reported requests
from other gateways. The loads are compared with the slots in the routes. Endpoints are keyed
without their slots (`round_robin.without_slots`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.round_robin import Ring, without_slots
from topics.records import Endpoint

_LEARNING_RATE = 0.01  # of the means over reports
_SHARED = 0.1
"""Share of foreign requests from which instances are shared."""


@dataclass(slots=True)
class InstanceLoads:
    """The loads of all instances of one model. full: instances without a free slot."""

    full: set[Endpoint] = field(default_factory=set)
    _slots: Mapping[Endpoint, int] = field(default_factory=dict)
    _in_flight: dict[Endpoint, int] = field(default_factory=dict)
    _others: dict[Endpoint, int] = field(default_factory=dict)
    _held_kv: dict[Endpoint, int] = field(default_factory=dict)
    _mean_reported: float = 0.0
    _mean_foreign: float = 0.0

    @property
    def shared(self) -> bool:
        """Whether other gateways have sent a part of the reported requests. A single report does
        not show it, because it is older than the gateway's own count."""
        return self._mean_foreign > _SHARED * self._mean_reported

    def set_slots(self, slots: Mapping[Endpoint, int], live: Collection[Endpoint]) -> None:
        """Use `slots` from now on. Reports of instances outside `live` are forgotten, but their
        requests in flight still count."""
        self._slots = slots
        for reported in (self._others, self._held_kv):
            for end in reported.keys() - live:
                del reported[end]
        self.full = {end for end in slots if self._is_full(end)}

    def add(self, endpoint: Endpoint) -> None:
        """Count one more request in flight at `endpoint`."""
        self._in_flight[endpoint] = self._in_flight.get(endpoint, 0) + 1
        self._count(endpoint)

    def remove(self, endpoint: Endpoint) -> None:
        """Count one request less in flight at `endpoint`, because one has ended, successfully or
        not."""
        left = self._in_flight.pop(endpoint) - 1
        if left:
            self._in_flight[endpoint] = left
        self._count(endpoint)

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests of this gateway in flight at `endpoint`."""
        return self._in_flight.get(without_slots(endpoint), 0)

    def report(self, endpoint: Endpoint, requests: int, held_kv: int) -> None:
        """Store the report of `endpoint`: its requests from all gateways, and its held KV. So
        requests from other gateways take slots too."""
        foreign = requests - self._in_flight.get(endpoint, 0)
        self._mean_foreign += _LEARNING_RATE * (foreign - self._mean_foreign)
        self._mean_reported += _LEARNING_RATE * (requests - self._mean_reported)
        self._others[endpoint] = max(0, foreign)
        self._held_kv[endpoint] = held_kv
        self._count(endpoint)

    def forget(self, endpoint: Endpoint) -> None:
        """Drop the last report of `endpoint`, because it is out of date."""
        if self._others.pop(endpoint, None) is not None:
            del self._held_kv[endpoint]
            self._count(endpoint)

    def all_reported(self, endpoints: Iterable[Endpoint]) -> bool:
        """Whether all of `endpoints` have reported their load."""
        return bool(self._others) and all(end in self._others for end in endpoints)

    def load(self, endpoint: Endpoint) -> float:
        """Number of known requests and held KV caches at `endpoint`."""
        reported = self._others.get(endpoint, 0) + self._held_kv.get(endpoint, 0)
        return self._in_flight.get(endpoint, 0) + reported

    def loads(self, endpoints: Iterable[Endpoint]) -> list[float]:
        """The load of each of `endpoints`."""
        if self._others:
            return [self.load(end) for end in endpoints]
        in_flight = self._in_flight
        return [in_flight.get(end, 0) for end in endpoints]

    def idle(self, ring: Ring, out: Iterable[Endpoint]) -> bool:
        """Whether an instance of `ring` outside `out` has no requests."""
        return any(
            end not in out and end not in self._in_flight and not self._others.get(end)
            for end in ring.endpoints
        )

    def busy(self, ring: Ring, out: Iterable[Endpoint]) -> bool:
        """Whether all instances of `ring` outside `out` are full. An instance without slots counts
        as full if it has any load."""
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
