"""Rings of instances of one role, and lanes: the ways through the groups of a model.

Owns whose turn it is among instances of one role, and how a group's weight is split among its
lanes. Knows nothing of ejections and loads: who is out, and how loaded one is, is told.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

from topics.records import Endpoint, RouteGroup

_MOST_ABOVE = 1.25  # of the mean load, for the sake of a prefix cache


def bare(endpoint: Endpoint) -> Endpoint:
    """Who it is: its instance and address, so a bound that moves makes no new instance of it."""
    return Endpoint(endpoint.instance, endpoint.address) if endpoint.slots else endpoint


@dataclass(slots=True)
class Ring:
    """Round robin over the instances of one role of a group."""

    endpoints: tuple[Endpoint, ...]
    at: int = 0

    def next(self, out: Iterable[Endpoint]) -> Endpoint | None:
        """The next endpoint that is not `out`, None where all of them are."""
        count = len(self.endpoints)
        for step in range(count):
            found = self.endpoints[(self.at + step) % count]
            if found not in out:
                self.at = (self.at + step + 1) % count
                return found
        return None

    def least(self, out: Iterable[Endpoint], load: Callable[[Endpoint], float]) -> Endpoint | None:
        """The least loaded that is not `out`, in turn among equals; None where all are."""
        count, best, lowest = len(self.endpoints), None, float("inf")
        for step in range(count):
            at = (self.at + step) % count
            found = self.endpoints[at]
            if found not in out and load(found) < lowest:
                best, lowest = at, load(found)
        if best is None:
            return None
        self.at = (best + 1) % count
        return self.endpoints[best]

    def near(
        self, prefix: int, out: Iterable[Endpoint], load: Callable[[Endpoint], float]
    ) -> Endpoint | None:
        """The instance that keeps `prefix` (rendezvous hashing: few prefixes move when instances
        come and go), among those not loaded far above the mean."""
        usable = [endpoint for endpoint in self.endpoints if endpoint not in out]
        if not usable:
            return None
        most = 1.0 + _MOST_ABOVE * sum(map(load, usable)) / len(usable)
        return max(
            (endpoint for endpoint in usable if load(endpoint) <= most),
            key=lambda endpoint: blake2b(f"{prefix}/{endpoint.instance}".encode()).digest(),
        )

    def any_in(self, out: Collection[Endpoint]) -> bool:
        """Whether one is not `out`; every request asks it of every lane, mostly of none out."""
        if not out:
            return bool(self.endpoints)
        return any(endpoint not in out for endpoint in self.endpoints)


@dataclass(slots=True)
class Lane:
    """One way through a group: its aggregated instances, or its prefill and decode ones."""

    group: str
    weight: float
    first: Ring
    decode: Ring | None
    current: float = 0.0  # of the smooth weighted round robin

    def usable(self, out: Collection[Endpoint]) -> bool:
        """Whether a request finds its way with those gone that are `out`."""
        return self.first.any_in(out) and self.decodes(out)

    def decodes(self, out: Collection[Endpoint]) -> bool:
        """Whether what is prefilled here is decoded."""
        return self.decode is None or self.decode.any_in(out)


def _ring(endpoints: Iterable[Endpoint]) -> Ring:
    return Ring(tuple(map(bare, endpoints)))


def lanes_of(group: RouteGroup) -> Iterable[Lane]:
    """A group with both kinds of instances splits its weight by their numbers."""
    both = len(group.aggregated) + len(group.prefill) + len(group.decode)
    if group.aggregated:
        share = group.weight * len(group.aggregated) / both
        yield Lane(group.group, share, _ring(group.aggregated), None)
    if group.prefill:
        share = group.weight * (len(group.prefill) + len(group.decode)) / both
        yield Lane(group.group, share, _ring(group.prefill), _ring(group.decode))
