"""Round robin over the instances of one role, and the lanes of a group. A lane consists of a
group's aggregated instances, or of its prefill and decode instances. Callers pass the excluded
instances and the loads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from topics.records import Endpoint, RouteGroup


def without_slots(endpoint: Endpoint) -> Endpoint:
    """The endpoint as a key: name and address. The key stays equal if the slots change."""
    return Endpoint(endpoint.instance, endpoint.address) if endpoint.slots else endpoint


@dataclass(slots=True)
class Ring:
    """Round robin over the instances of one role of a group."""

    endpoints: tuple[Endpoint, ...]
    at: int = 0

    def next(self, out: Iterable[Endpoint]) -> Endpoint | None:
        """The next endpoint outside `out`, None if there is none."""
        count = len(self.endpoints)
        for step in range(count):
            found = self.endpoints[(self.at + step) % count]
            if found not in out:
                self.at = (self.at + step + 1) % count
                return found
        return None

    def least_loaded(
        self, out: Iterable[Endpoint], load: Callable[[Endpoint], float]
    ) -> Endpoint | None:
        """The least loaded endpoint outside `out`; None if there is none. Equally loaded endpoints
        take turns."""
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

    def any_outside(self, out: Collection[Endpoint]) -> bool:
        """Whether an endpoint is outside `out`. Runs for every request and lane."""
        if not out:
            return bool(self.endpoints)
        return any(endpoint not in out for endpoint in self.endpoints)


@dataclass(slots=True)
class Lane:
    """A part of a group that can serve whole requests: its aggregated instances, or its prefill and
    decode instances."""

    group: str
    weight: float
    first: Ring
    decode: Ring | None
    current: float = 0.0  # score in the smooth weighted round robin

    def usable(self, out: Collection[Endpoint]) -> bool:
        """Whether instances outside `out` can serve a whole request."""
        return self.first.any_outside(out) and self.can_decode(out)

    def can_decode(self, out: Collection[Endpoint]) -> bool:
        """Whether a decode instance outside `out` exists, or the lane needs none."""
        return self.decode is None or self.decode.any_outside(out)


def _ring(endpoints: Iterable[Endpoint]) -> Ring:
    return Ring(tuple(map(without_slots, endpoints)))


def group_lanes(group: RouteGroup) -> Iterable[Lane]:
    """The lanes of `group`. If a group has both kinds of instances, each lane has a part of its
    weight in proportion to its number of instances."""
    both = len(group.aggregated) + len(group.prefill) + len(group.decode)
    if group.aggregated:
        share = group.weight * len(group.aggregated) / both
        yield Lane(group.group, share, _ring(group.aggregated), None)
    if group.prefill:
        share = group.weight * (len(group.prefill) + len(group.decode)) / both
        yield Lane(group.group, share, _ring(group.prefill), _ring(group.decode))
