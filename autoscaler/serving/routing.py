"""Which instance the next request of a model goes to.

Owns smooth weighted round robin between combos, of all requests or of each kind of them
(`serving.ways`), and the choice inside a combo (`serving.policies`). Who failed is for
`serving.ejections`, who is full for `serving.occupancy`. Knows nothing of HTTP, clocks or who waits
(`serving.wait_queue`): callers say what the time is (`now_ms`, domain ms) and what happened.

Endpoints come out without their slots: who they are is their instance and address, so a bound that
moves makes no new instance of them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from autoscaler.serving.component_paths import Paths, Way, kind_with
from autoscaler.serving.ejections import Ejections
from autoscaler.serving.instance_load import Occupancy
from autoscaler.serving.round_robin import Lane, Ring, bare, lanes_of
from autoscaler.serving.routing_policies import ANY, DEFAULT, Between, Inside, Policy, Want
from autoscaler.serving.traffic_classes import Ways
from topics.records import Endpoint, Routes


class Applied(StrEnum):
    """What became of routes that were handed in."""

    CHANGED = "changed"
    SAME = "same"
    STALE = "stale"  # from an older leader, or an older generation of the same leader


class Pick(NamedTuple):
    """Where a request goes first. prefill: it is prefilled here and decoded elsewhere in the same
    group (`Router.pick_decode`, asked when the prefill is done); otherwise this instance, of
    whatever role, does all of it. way: of a request through a model of components, whose first hop
    is at the endpoint (`Router.pick_hop`, asked for each further one)."""

    group: str
    endpoint: Endpoint
    prefill: bool
    way: Way | None = None


@dataclass(slots=True)
class Router:
    """The routes of one model as one gateway applies them. Not shared between threads."""

    model: str
    routes: Routes | None = None
    policy: Policy = DEFAULT
    _lanes: tuple[Lane, ...] = ()
    _ways: Ways = field(default_factory=Ways)
    _ejections: Ejections = field(default_factory=Ejections)
    _occupancy: Occupancy = field(default_factory=Occupancy)
    _paths: Paths = field(default_factory=Paths)

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
            if (routes.groups, routes.types) == (known.groups, known.types):
                self.routes = routes
                return Applied.SAME if new == old else Applied.CHANGED
        current = {(lane.group, lane.decode is None): lane.current for lane in self._lanes}
        lanes = tuple(lane for group in routes.groups for lane in lanes_of(group))
        for lane in lanes:
            lane.current = current.get((lane.group, lane.decode is None), 0.0)
        self.routes, self._lanes = routes, lanes
        self._paths.apply(routes.groups)
        self._ways = self._ways.changed(routes)
        live = self.endpoints()
        self._ejections.keep(live)
        slots = {
            bare(end): end.slots
            for group in routes.groups
            for end in (*group.aggregated, *group.prefill, *group.decode)
            if end.slots
        }
        self._occupancy.bound(slots, live)
        return Applied.CHANGED

    def distrust(self) -> None:
        """The routes applied were of no true leader: whatever is applied next replaces them."""
        if self.routes is not None:
            self.routes = replace(self.routes, leader_token=0, generation=0)

    def pick(self, exclude: frozenset[Endpoint] = frozenset(), want: Want = ANY) -> Pick | None:
        """The next instance with room, where one more is in flight until `done`; else None.

        exclude: instances that this request has tried already. Groups share by weight (smooth
        weighted round robin: each step every usable group gains its weight, the highest is
        chosen and pays the sum); if only groups of weight 0 are usable they share equally. A kind
        of requests that has shares of its own goes by these, to groups without one only while no
        group with one serves.
        """
        gone = self._ejections.out | exclude
        if self._paths:
            return self._pick_path(gone, want)
        out = gone | self._occupancy.full
        way = self._way(want.kind, gone)
        usable = [lane for lane in way if self._has_room(lane, gone, out)]
        if not usable:
            return None
        allowed = usable
        if not want.single:
            allowed = [lane for lane in usable if lane.decode is None] or usable
        if way is self._lanes:
            lane = self._next_lane(allowed, want)
        else:
            serving = {lane.group for lane in way if lane.usable(gone)}
            group = self._ways.next(want.kind, serving, {lane.group for lane in allowed})
            lane = self._next_lane([lane for lane in allowed if lane.group == group], want)
        endpoint, prefill = self._choose(lane, gone, out, want)
        self._occupancy.sent(endpoint)
        return Pick(lane.group, endpoint, prefill)

    def kind_of(
        self, input_tokens: float, output_tokens: float, media: frozenset[str] = frozenset()
    ) -> str:
        """Which kind a request is, by its media in a model of components, else by its lengths; ""
        where all requests go the same way."""
        if self.routes is not None and self.routes.kinds:
            return kind_with(self.routes.kinds, media) or ""
        return self._ways.kind_of(input_tokens, output_tokens)

    def takes(self, media: frozenset[str]) -> bool:
        """Whether requests with `media` are of a kind that is planned for; of a model that is no
        graph of components its engines judge that."""
        kinds = self.routes.kinds if self.routes is not None else ()
        return not kinds or kind_with(kinds, media) is not None

    def _way(self, kind: str, gone: Collection[Endpoint]) -> tuple[Lane, ...]:
        """The lanes that `kind` may take: those with a share of it, else all of them."""
        shares = self._ways.shares.get(kind)
        if shares is None:
            return self._lanes
        planned = tuple(lane for lane in self._lanes if lane.group in shares)
        return planned if any(lane.usable(gone) for lane in planned) else self._lanes

    def _pick_path(self, gone: frozenset[Endpoint], want: Want) -> Pick | None:
        way = self._paths.sample(want.kind, gone)
        endpoint = self.pick_hop(way, 0, gone) if way is not None else None
        return Pick(way.group, endpoint, False, way) if way is not None and endpoint else None

    def pick_hop(
        self, way: Way, hop: int, exclude: frozenset[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The instance for a hop of `way`, where one more is in flight until `done`; None where
        its stage is gone."""
        found = self._paths.endpoint(way, hop, self._ejections.out | exclude)
        if found is not None:
            self._occupancy.sent(found)
        return found

    def _next_lane(self, usable: list[Lane], want: Want) -> Lane:
        equal = self.policy.between is Between.EQUAL
        tokens = max(1, want.tokens) if self.policy.between is Between.TOKENS else 1
        weighted = [lane for lane in usable if lane.weight > 0.0]
        total, best = 0.0, (weighted or usable)[0]
        for lane in weighted or usable:
            gain = tokens * (lane.weight if weighted and not equal else 1.0)
            total += gain
            lane.current += gain
            if lane.current > best.current:
                best = lane
        best.current -= total
        return best

    def _choose(
        self, lane: Lane, gone: frozenset[Endpoint], out: frozenset[Endpoint], want: Want
    ) -> tuple[Endpoint, bool]:
        """The instance of `lane`, and whether it only prefills."""
        first, decode = lane.first, lane.decode
        if decode is None:
            return self._turn(first, out, want), False
        if not want.single:  # its KV cannot be handed over
            found = decode.least(gone, self._occupancy.load) or first.least(
                gone, self._occupancy.load
            )
            assert found is not None  # noqa: S101 - _has_room() said so
            return found, False
        if self.policy.inside is not Inside.ROUND_ROBIN:
            can_prefill = self._occupancy.idle(first, out)
            if not can_prefill and self._occupancy.idle(decode, gone):
                found = decode.least(gone, self._occupancy.load)
                assert found is not None  # noqa: S101
                return found, False
            if can_prefill and self._occupancy.busy(decode, gone):
                found = first.least(out, self._occupancy.load)
                assert found is not None  # noqa: S101
                return found, False
        return self._turn(first, out, want), True

    def _turn(self, ring: Ring, out: frozenset[Endpoint], want: Want) -> Endpoint:
        if self.policy.inside is Inside.PREFIX:
            found = ring.near(want.prefix, out, self._occupancy.load)
        elif self._occupancy.told(ring.endpoints):
            found = ring.least(out, self._occupancy.load)
        else:
            found = ring.next(out)
        assert found is not None  # noqa: S101 - _has_room() said so
        return found

    def _has_room(self, lane: Lane, gone: frozenset[Endpoint], out: frozenset[Endpoint]) -> bool:
        if not lane.decodes(gone):
            return False
        if lane.first.any_in(out):
            return True
        if not lane.first.any_in(gone):
            return False
        opportunistic = self.policy.inside is not Inside.ROUND_ROBIN
        return opportunistic and lane.decode is not None and self._occupancy.idle(lane.decode, gone)

    def done(self, endpoint: Endpoint) -> None:
        """A request that `pick` or `pick_decode` sent to `endpoint` has left it, whatever became
        of it."""
        self._occupancy.done(endpoint)

    def report_load(self, endpoint: Endpoint, requests: int, held_kv: int) -> None:
        """What `endpoint` itself says that it holds, of all gateways; it holds until the next
        report or `forget_load`."""
        endpoint = bare(endpoint)
        if self._occupancy.told((endpoint,)) or endpoint in self.endpoints():
            self._occupancy.report(endpoint, requests, held_kv)

    def forget_load(self, endpoint: Endpoint) -> None:
        """Nobody knows any more what else `endpoint` holds."""
        self._occupancy.forget(bare(endpoint))

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests that were sent to `endpoint` and that are there still."""
        return self._occupancy.in_flight(endpoint)

    def has_room(self, kind: str = "") -> bool:
        """Whether `pick` would find an instance for a request of `kind` that has tried none."""
        gone = self._ejections.out
        if self._paths:
            return self._paths.is_open(gone, kind)
        out = gone | self._occupancy.full
        return any(self._has_room(lane, gone, out) for lane in self._way(kind, gone))

    def is_open(self, exclude: frozenset[Endpoint] = frozenset(), kind: str = "") -> bool:
        """Whether there is an instance outside `exclude` that serves, full or not; `kind` matters
        in a model of components."""
        out = self._ejections.out | exclude
        return self._paths.is_open(out, kind) or any(lane.usable(out) for lane in self._lanes)

    def pick_decode(
        self, group: str, exclude: frozenset[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The decode instance of `group` for a request just prefilled there, None if it has none.

        Chosen after the prefill by the routes of that moment: a decode instance that left them
        meanwhile gets nothing more, which is what a drain relies on. It is asked whatever it has
        in flight: the KV waits for it, and the prefill instances' slots bound what comes. One more
        is in flight there until `done`.
        """
        out = self._ejections.out | exclude
        for lane in self._lanes:
            if lane.group == group and lane.decode is not None:
                if self.policy.inside is Inside.ROUND_ROBIN:
                    found = lane.decode.next(out)
                else:
                    found = lane.decode.least(out, self._occupancy.load)
                if found is not None:
                    self._occupancy.sent(found)
                return found
        return None

    def eject(self, endpoint: Endpoint, now_ms: int) -> bool:
        """Send nothing to `endpoint` until `readmit`; True if it was not ejected already."""
        endpoint = bare(endpoint)
        return endpoint in self.endpoints() and self._ejections.eject(endpoint, now_ms)

    def due_probes(self, now_ms: int) -> tuple[Endpoint, ...]:
        """Ejected endpoints to be probed now; the wait until the next probe doubles each time."""
        return self._ejections.due(now_ms)

    def readmit(self, endpoint: Endpoint) -> bool:
        """A probe of `endpoint` succeeded: it takes part again; True if it was ejected."""
        return self._ejections.readmit(bare(endpoint))

    def endpoints(self) -> frozenset[Endpoint]:
        """Every endpoint in the routes, ejected ones too."""
        rings = [ring for lane in self._lanes for ring in (lane.first, lane.decode) if ring]
        alone = frozenset(endpoint for ring in rings for endpoint in ring.endpoints)
        return alone | self._paths.endpoints()

    def ejected(self) -> frozenset[Endpoint]:
        """The endpoints that get nothing now."""
        return self._ejections.out


def _rank(routes: Routes) -> tuple[int, int]:
    return routes.leader_token, routes.generation
