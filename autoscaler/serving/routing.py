"""Which instance the next request of a model goes to.

Owns smooth weighted round robin between combos, round robin inside a combo, ejection of instances
that failed and their timed re-admission, and how many requests each has in flight. Knows nothing
of HTTP, clocks or who waits (`serving.wait_queue`): callers say what the time is (`now_ms`,
domain ms) and what happened.

Endpoints come out without their slots: who they are is their instance and address, so a bound that
moves makes no new instance of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from topics.records import Endpoint, RouteGroup, Routes

PROBE_FIRST_MS = 1_000
PROBE_LAST_MS = 30_000


class Applied(StrEnum):
    """What became of routes that were handed in."""

    CHANGED = "changed"
    SAME = "same"
    STALE = "stale"  # from an older leader, or an older generation of the same leader


@dataclass(frozen=True, slots=True)
class Pick:
    """Where a request goes first. prefill: the request is prefilled here and decoded elsewhere
    in the same group (`Router.pick_decode`, asked when the prefill is done)."""

    group: str
    endpoint: Endpoint
    prefill: bool


@dataclass(slots=True)
class _Ring:
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

    def any_in(self, out: Iterable[Endpoint]) -> bool:
        return any(endpoint not in out for endpoint in self.endpoints)


@dataclass(slots=True)
class _Lane:
    """One way through a group: its aggregated instances, or its prefill and decode ones."""

    group: str
    weight: float
    first: _Ring
    decode: _Ring | None
    current: float = 0.0  # of the smooth weighted round robin

    def usable(self, out: Iterable[Endpoint]) -> bool:
        return self.first.any_in(out) and (self.decode is None or self.decode.any_in(out))


@dataclass(slots=True)
class _Ejection:
    """An instance that gets nothing until a probe succeeds. due_ms: of the next probe."""

    attempts: int
    due_ms: int


@dataclass(slots=True)
class Router:
    """The routes of one model as one gateway applies them. Not shared between threads."""

    model: str
    routes: Routes | None = None
    _lanes: tuple[_Lane, ...] = ()
    _ejected: dict[Endpoint, _Ejection] = field(default_factory=dict)
    _slots: dict[Endpoint, int] = field(default_factory=dict)
    _in_flight: dict[Endpoint, int] = field(default_factory=dict)
    _full: set[Endpoint] = field(default_factory=set)

    def apply(self, routes: Routes) -> Applied:
        """Go by `routes` from now on, unless they are older than what is applied.

        Older is a lower (leader_token, generation). Shares already served are remembered for the
        groups that stay, so a change of routes does not begin the round again.
        """
        known = self.routes
        if known is not None:
            new, old = _rank(routes), _rank(known)
            if new < old:
                return Applied.STALE
            if routes.groups == known.groups:
                self.routes = routes
                return Applied.SAME if new == old else Applied.CHANGED
        current = {(lane.group, lane.decode is None): lane.current for lane in self._lanes}
        lanes = tuple(lane for group in routes.groups for lane in _lanes(group))
        for lane in lanes:
            lane.current = current.get((lane.group, lane.decode is None), 0.0)
        self.routes, self._lanes = routes, lanes
        live = self.endpoints()
        self._ejected = {at: why for at, why in self._ejected.items() if at in live}
        self._slots = {
            _bare(end): end.slots
            for group in routes.groups
            for end in (*group.aggregated, *group.prefill)
            if end.slots
        }
        self._full = {
            end for end, slots in self._slots.items() if self._in_flight.get(end, 0) >= slots
        }
        return Applied.CHANGED

    def distrust(self) -> None:
        """The routes applied were of no true leader: whatever is applied next replaces them."""
        if self.routes is not None:
            self.routes = replace(self.routes, leader_token=0, generation=0)

    def pick(self, exclude: frozenset[Endpoint] = frozenset()) -> Pick | None:
        """The next instance with room, where one more is in flight until `done`; else None.

        exclude: instances that this request has tried already. Groups share by weight (smooth
        weighted round robin: each step every usable group gains its weight, the highest is
        chosen and pays the sum); if only groups of weight 0 are usable they share equally.
        """
        out = self._ejected.keys() | self._full | exclude
        usable = [lane for lane in self._lanes if lane.usable(out)]
        if not usable:
            return None
        weighted = [lane for lane in usable if lane.weight > 0.0]
        total, best = 0.0, (weighted or usable)[0]
        for lane in weighted or usable:
            gain = lane.weight if weighted else 1.0
            total += gain
            lane.current += gain
            if lane.current > best.current:
                best = lane
        best.current -= total
        endpoint = best.first.next(out)
        assert endpoint is not None  # noqa: S101 - usable() said so
        self._in_flight[endpoint] = in_flight = self._in_flight.get(endpoint, 0) + 1
        if in_flight >= self._slots.get(endpoint, in_flight + 1):
            self._full.add(endpoint)
        return Pick(best.group, endpoint, best.decode is not None)

    def done(self, endpoint: Endpoint) -> None:
        """A request that `pick` sent to `endpoint` has left it, whatever became of it."""
        left = self._in_flight[endpoint] - 1
        if left:
            self._in_flight[endpoint] = left
        else:
            del self._in_flight[endpoint]
        if left < self._slots.get(endpoint, left + 1):
            self._full.discard(endpoint)

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests that `pick` sent to `endpoint` and that are there still."""
        return self._in_flight.get(_bare(endpoint), 0)

    def has_room(self) -> bool:
        """Whether `pick` would find an instance for a request that has tried none."""
        out = self._ejected.keys() | self._full
        return any(lane.usable(out) for lane in self._lanes)

    def is_open(self, exclude: frozenset[Endpoint] = frozenset()) -> bool:
        """Whether there is an instance outside `exclude` that serves, full or not."""
        out = self._ejected.keys() | exclude
        return any(lane.usable(out) for lane in self._lanes)

    def pick_decode(
        self, group: str, exclude: frozenset[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The decode instance of `group` for a request just prefilled there, None if it has none.

        Chosen after the prefill by the routes of that moment: a decode instance that left them
        meanwhile gets nothing more, which is what a drain relies on. It is asked whatever it has
        in flight: the KV waits for it, and the prefill instances' slots bound what comes.
        """
        out = self._ejected.keys() | exclude if exclude else self._ejected.keys()
        for lane in self._lanes:
            if lane.group == group and lane.decode is not None:
                return lane.decode.next(out)
        return None

    def eject(self, endpoint: Endpoint, now_ms: int) -> bool:
        """Send nothing to `endpoint` until `readmit`; True if it was not ejected already."""
        endpoint = _bare(endpoint)
        if endpoint in self._ejected or endpoint not in self.endpoints():
            return False
        self._ejected[endpoint] = _Ejection(0, now_ms + PROBE_FIRST_MS)
        return True

    def due_probes(self, now_ms: int) -> tuple[Endpoint, ...]:
        """Ejected endpoints to be probed now; the wait until the next probe doubles each time."""
        due = tuple(at for at, why in self._ejected.items() if why.due_ms <= now_ms)
        for endpoint in due:
            why = self._ejected[endpoint]
            why.attempts += 1
            why.due_ms = now_ms + min(PROBE_LAST_MS, PROBE_FIRST_MS << min(why.attempts, 10))
        return due

    def readmit(self, endpoint: Endpoint) -> bool:
        """A probe of `endpoint` succeeded: it takes part again; True if it was ejected."""
        return self._ejected.pop(_bare(endpoint), None) is not None

    def endpoints(self) -> frozenset[Endpoint]:
        """Every endpoint in the routes, ejected ones too."""
        rings = [ring for lane in self._lanes for ring in (lane.first, lane.decode) if ring]
        return frozenset(endpoint for ring in rings for endpoint in ring.endpoints)

    def ejected(self) -> frozenset[Endpoint]:
        """The endpoints that get nothing now."""
        return frozenset(self._ejected)


def _rank(routes: Routes) -> tuple[int, int]:
    return routes.leader_token, routes.generation


def _bare(endpoint: Endpoint) -> Endpoint:
    return Endpoint(endpoint.instance, endpoint.address) if endpoint.slots else endpoint


def _ring(endpoints: Iterable[Endpoint]) -> _Ring:
    return _Ring(tuple(map(_bare, endpoints)))


def _lanes(group: RouteGroup) -> Iterable[_Lane]:
    """A group with both kinds of instances splits its weight by their numbers."""
    both = len(group.aggregated) + len(group.prefill) + len(group.decode)
    if group.aggregated:
        share = group.weight * len(group.aggregated) / both
        yield _Lane(group.group, share, _ring(group.aggregated), None)
    if group.prefill:
        share = group.weight * (len(group.prefill) + len(group.decode)) / both
        yield _Lane(group.group, share, _ring(group.prefill), _ring(group.decode))
