"""Chooses the instance for the next request of a model.

It chooses a combo by smooth weighted round robin, over all requests or per request class
(`traffic_classes`), then an instance of the combo by `routing_policies`. `ejections` knows the
failed instances, `instance_load` the full instances, `wait_queue` the waiting requests. Callers
pass the time (`now_ms`, domain ms) and report events.

Endpoints are returned without their slots: name and address identify an instance.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from autoscaler.serving.adapter_affinity import AdapterAffinity
from autoscaler.serving.component_paths import ComponentPath, ComponentPaths, kind_with
from autoscaler.serving.ejections import Ejections
from autoscaler.serving.entry_instances import Entry, EntryInstances
from autoscaler.serving.instance_load import InstanceLoads
from autoscaler.serving.prefix_index import PrefixIndex
from autoscaler.serving.round_robin import Lane, Ring, group_lanes, without_slots
from autoscaler.serving.routing_policies import (
    ANY,
    DEFAULT,
    AcrossCombos,
    RequestTraits,
    RoutingPolicy,
    WithinCombo,
)
from autoscaler.serving.traffic_classes import ClassShares
from topics.records import Endpoint, Routes


class RouteUpdate(StrEnum):
    """Result of `Router.apply`."""

    CHANGED = "changed"
    SAME = "same"
    STALE = "stale"  # the routes are from an older leader or an older generation


class Pick(NamedTuple):
    """The first destination of a request.

    prefill: whether the instance only prefills. Another instance of `group` then decodes
    (`Router.pick_decode`, called after the prefill). path: the path of a request through a model of
    components; the endpoint is its first hop (`Router.pick_hop` returns the others).
    """

    group: str
    endpoint: Endpoint
    prefill: bool
    path: ComponentPath | None = None


@dataclass(slots=True)
class Router:
    """The routes of one model at one gateway, for one thread. versions: of groups whose versions
    are compared."""

    model: str
    routes: Routes | None = None
    policy: RoutingPolicy = DEFAULT
    versions: dict[str, str] = field(default_factory=dict)
    _lanes: tuple[Lane, ...] = ()
    _ways: ClassShares = field(default_factory=ClassShares)
    _ejections: Ejections = field(default_factory=Ejections)
    _occupancy: InstanceLoads = field(default_factory=InstanceLoads)
    _paths: ComponentPaths = field(default_factory=ComponentPaths)
    _adapters: AdapterAffinity = field(default_factory=AdapterAffinity)
    _prefixes: PrefixIndex = field(default_factory=PrefixIndex)
    _entries: EntryInstances = field(default_factory=EntryInstances)

    def apply(self, routes: Routes) -> RouteUpdate:
        """Use `routes` from now on, unless they are older than the present routes, i.e. have a
        lower (leader_token, generation). Groups that stay keep their position in the rotation.
        """
        known = self.routes
        if known is not None:
            new, old = _rank(routes), _rank(known)
            if new < old:
                return RouteUpdate.STALE
            if (routes.groups, routes.types) == (known.groups, known.types):
                self.routes = routes
                return RouteUpdate.SAME if new == old else RouteUpdate.CHANGED
        current = {(lane.group, lane.decode is None): lane.current for lane in self._lanes}
        lanes = tuple(lane for group in routes.groups for lane in group_lanes(group))
        for lane in lanes:
            lane.current = current.get((lane.group, lane.decode is None), 0.0)
        self.routes, self._lanes = routes, lanes
        self.versions.clear()  # requests that wait for a slot hold this mapping
        self.versions.update((one.group, one.version) for one in routes.groups if one.version)
        self._entries = EntryInstances.of(lanes, self.policy.between is AcrossCombos.EQUAL)
        self._paths.apply(routes.groups)
        self._ways = self._ways.with_routes(routes)
        live = self.endpoints()
        self._ejections.keep(live)
        self._adapters.keep(live, routes.adapters)
        self._prefixes.keep(live)
        slots = {
            without_slots(end): end.slots
            for group in routes.groups
            for end in (*group.aggregated, *group.prefill, *group.decode)
            if end.slots
        }
        self._occupancy.set_slots(slots, live)
        return RouteUpdate.CHANGED

    def distrust(self) -> None:
        """Accept any routes next, even older ones, because the present routes were not written by a
        leader."""
        if self.routes is not None:
            self.routes = replace(self.routes, leader_token=0, generation=0)

    def pick(
        self, exclude: frozenset[Endpoint] = frozenset(), want: RequestTraits = ANY
    ) -> Pick | None:
        """The next instance with a free slot; None if there is none. The request counts as in
        flight at the instance until `release`.

        exclude: instances that this request has tried. Groups share the requests by weight (smooth
        weighted round robin): each pick adds the weight of every usable group to its score, chooses
        the group with the highest score, and subtracts the sum of the weights from that score. If
        all usable groups have weight 0, they share equally. A request class with its own shares
        uses the groups in these shares, and other groups only while none of them serves.
        """
        gone = self._ejections.out | exclude
        if self._paths:
            return self._pick_path(gone, want)
        if want.adapter:
            gone = gone.union(self._adapters.lacking(want.adapter))
        out = gone | self._occupancy.full
        way = self._lanes_for(want.kind, gone)
        usable = [lane for lane in way if self._has_room(lane, gone, out)]
        if not usable:
            return None
        allowed = usable
        if not want.single:
            allowed = [lane for lane in usable if lane.decode is None] or usable
        home = self._adapters.home(want.adapter, allowed, out, self._occupancy.load)
        if home is not None:
            lane, endpoint = home
            self._next_lane(allowed, want, lane)
            self._occupancy.add(endpoint)
            return Pick(lane.group, endpoint, False)
        if way is self._lanes:
            entry = self._prefix_home(gone, out, want)
            if entry is not None:
                lane, endpoint = entry.lane, entry.endpoint
                self._next_lane(allowed, want, lane)
                return self._send(lane, endpoint, self._only_prefills(entry, gone), want)
            lane = self._next_lane(allowed, want)
        else:
            serving = {lane.group for lane in way if lane.usable(gone)}
            group = self._ways.next_group(want.kind, serving, {lane.group for lane in allowed})
            lane = self._next_lane([lane for lane in allowed if lane.group == group], want)
        endpoint, prefill = self._choose(lane, gone, out, want)
        return self._send(lane, endpoint, prefill, want)

    def _send(self, lane: Lane, endpoint: Endpoint, prefill: bool, want: RequestTraits) -> Pick:
        if want.adapter and not prefill:
            self._adapters.note_served(want.adapter, endpoint)
        if self.policy.inside is WithinCombo.PREFIX and want.blocks:
            self._prefixes.note_sent(want.blocks, endpoint)
        self._occupancy.add(endpoint)
        return Pick(lane.group, endpoint, prefill)

    def note_lacking(self, adapter: str, endpoint: Endpoint) -> None:
        """Note that `endpoint` lacks `adapter`, so that it gets no further requests for this
        adapter."""
        self._adapters.note_lacking(adapter, without_slots(endpoint))

    def all_lack(self, adapter: str) -> bool:
        """Whether there is at least one instance, but none that has `adapter`."""
        live = self.endpoints()
        return bool(live) and live <= frozenset(self._adapters.lacking(adapter))

    def kind_of(
        self, input_tokens: float, output_tokens: float, media: frozenset[str] = frozenset()
    ) -> str:
        """The class of a request: by its media in a model of components, else by its lengths; "" if
        the model has no classes."""
        if self.routes is not None and self.routes.kinds:
            return kind_with(self.routes.kinds, media) or ""
        return self._ways.class_of(input_tokens, output_tokens)

    def accepts_media(self, media: frozenset[str]) -> bool:
        """Whether a planned class covers requests with `media`. Always true for a model without
        components, because its engines decide what they accept."""
        kinds = self.routes.kinds if self.routes is not None else ()
        return not kinds or kind_with(kinds, media) is not None

    def _lanes_for(self, kind: str, gone: Collection[Endpoint]) -> tuple[Lane, ...]:
        """The lanes that class `kind` may use: the lanes of groups in which the class has a share.
        If none of these lanes is usable, all lanes."""
        shares = self._ways.shares.get(kind)
        if shares is None:
            return self._lanes
        planned = tuple(lane for lane in self._lanes if lane.group in shares)
        return planned if any(lane.usable(gone) for lane in planned) else self._lanes

    def _pick_path(self, gone: frozenset[Endpoint], want: RequestTraits) -> Pick | None:
        way = self._paths.sample(want.kind, gone)
        endpoint = self.pick_hop(way, 0, gone) if way is not None else None
        return Pick(way.group, endpoint, False, way) if way is not None and endpoint else None

    def pick_hop(
        self, way: ComponentPath, hop: int, exclude: frozenset[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The instance for a hop of `way`; None if its stage has none. The request counts as in
        flight there until `release`."""
        found = self._paths.endpoint(way, hop, self._ejections.out | exclude)
        if found is not None:
            self._occupancy.add(found)
        return found

    def _next_lane(
        self, usable: list[Lane], want: RequestTraits, chosen: Lane | None = None
    ) -> Lane:
        """`chosen` if given, else the lane whose turn it is. The rotation counts the request in
        both cases."""
        equal = self.policy.between is AcrossCombos.EQUAL
        tokens = max(1, want.tokens) if self.policy.between is AcrossCombos.TOKENS else 1
        weighted = [lane for lane in usable if lane.weight > 0.0]
        total, best = 0.0, (weighted or usable)[0]
        for lane in weighted or usable:
            gain = tokens * (lane.weight if weighted and not equal else 1.0)
            total += gain
            lane.current += gain
            if lane.current > best.current:
                best = lane
        best = chosen or best
        best.current -= total
        return best

    def _prefix_home(
        self, gone: frozenset[Endpoint], out: frozenset[Endpoint], want: RequestTraits
    ) -> Entry | None:
        """Where a prompt begins, by its beginning, among the instances of all lanes; None for
        another policy."""
        if self.policy.inside is not WithinCombo.PREFIX or not want.blocks:
            return None
        usable = self._entries.usable(gone, out, want.single)
        if not usable:
            return None
        loads = self._entries.relative_loads(usable, self._occupancy)
        ends = [one.endpoint for one in usable]
        return usable[self._prefixes.choose(want.blocks, ends, loads, self._occupancy.shared)]

    def _only_prefills(self, entry: Entry, gone: frozenset[Endpoint]) -> bool:
        """Whether another instance decodes. An idle instance serves a request whole while all
        instances that decode are busy."""
        decode = entry.lane.decode
        if decode is None:
            return False
        return self._occupancy.load(entry.endpoint) > 0 or not self._occupancy.busy(decode, gone)

    def _choose(
        self, lane: Lane, gone: frozenset[Endpoint], out: frozenset[Endpoint], want: RequestTraits
    ) -> tuple[Endpoint, bool]:
        """The instance of `lane` for the next request, and whether it only prefills."""
        first, decode = lane.first, lane.decode
        if decode is None:
            return self._next_instance(first, out, want), False
        # one instance must serve the whole request: its KV cannot be handed over
        if not want.single:
            found = decode.least_loaded(gone, self._occupancy.load) or first.least_loaded(
                gone, self._occupancy.load
            )
            assert found is not None  # noqa: S101 - _has_room() said so
            return found, False
        if self.policy.inside is not WithinCombo.ROUND_ROBIN:
            can_prefill = self._occupancy.idle(first, out)
            if not can_prefill and self._occupancy.idle(decode, gone):
                found = decode.least_loaded(gone, self._occupancy.load)
                assert found is not None  # noqa: S101
                return found, False
            if can_prefill and self._occupancy.busy(decode, gone):
                found = first.least_loaded(out, self._occupancy.load)
                assert found is not None  # noqa: S101
                return found, False
        return self._next_instance(first, out, want), True

    def _next_instance(self, ring: Ring, out: frozenset[Endpoint], want: RequestTraits) -> Endpoint:
        if self.policy.inside is WithinCombo.PREFIX and want.blocks:
            usable = [end for end in ring.endpoints if end not in out]
            loads = self._occupancy.loads(usable)
            return usable[self._prefixes.choose(want.blocks, usable, loads, self._occupancy.shared)]
        if self._occupancy.all_reported(ring.endpoints):
            found = ring.least_loaded(out, self._occupancy.load)
        else:
            found = ring.next(out)
        assert found is not None  # noqa: S101 - _has_room() said so
        return found

    def _has_room(self, lane: Lane, gone: frozenset[Endpoint], out: frozenset[Endpoint]) -> bool:
        if not lane.can_decode(gone):
            return False
        if lane.first.any_outside(out):
            return True
        if not lane.first.any_outside(gone):
            return False
        opportunistic = self.policy.inside is not WithinCombo.ROUND_ROBIN
        return opportunistic and lane.decode is not None and self._occupancy.idle(lane.decode, gone)

    def release(self, endpoint: Endpoint) -> None:
        """Count one request less at `endpoint`: a request has ended there, successfully or not."""
        self._occupancy.remove(endpoint)

    def report_load(self, endpoint: Endpoint, requests: int, held_kv: int) -> None:
        """Store the load that `endpoint` reports over all gateways. The report stays valid until
        the next report or until `forget_load`."""
        endpoint = without_slots(endpoint)
        if self._occupancy.all_reported((endpoint,)) or endpoint in self.endpoints():
            self._occupancy.report(endpoint, requests, held_kv)

    def forget_load(self, endpoint: Endpoint) -> None:
        """Drop the last report of `endpoint`, because it is out of date."""
        self._occupancy.forget(without_slots(endpoint))

    def in_flight(self, endpoint: Endpoint) -> int:
        """Requests of this gateway in flight at `endpoint`."""
        return self._occupancy.in_flight(endpoint)

    def has_room(self, kind: str = "") -> bool:
        """Whether `pick` would return an instance for a new request of class `kind`."""
        gone = self._ejections.out
        if self._paths:
            return self._paths.is_open(gone, kind)
        out = gone | self._occupancy.full
        return any(self._has_room(lane, gone, out) for lane in self._lanes_for(kind, gone))

    def is_open(
        self, exclude: frozenset[Endpoint] = frozenset(), kind: str = "", adapter: str = ""
    ) -> bool:
        """Whether any instance outside `exclude` has `adapter` and serves, with or without a free
        slot. `kind` has an effect only in a model of components."""
        out = self._ejections.out | exclude
        if adapter:
            out = out.union(self._adapters.lacking(adapter))
        return self._paths.is_open(out, kind) or any(lane.usable(out) for lane in self._lanes)

    def pick_decode(
        self, group: str, exclude: frozenset[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The decode instance of `group` for a request that was just prefilled there; None if there
        is none.

        Only instances in the present routes are chosen, because a draining instance, which is no
        longer in the routes, must get no more requests. The instance may be full: the KV waits for
        it, and the slots of the prefill instances limit the number of waiting requests. The request
        counts as in flight at the instance until `release`.
        """
        out = self._ejections.out | exclude
        for lane in self._lanes:
            if lane.group == group and lane.decode is not None:
                if self.policy.inside is WithinCombo.ROUND_ROBIN:
                    found = lane.decode.next(out)
                else:
                    found = lane.decode.least_loaded(out, self._occupancy.load)
                if found is not None:
                    self._occupancy.add(found)
                return found
        return None

    def eject(self, endpoint: Endpoint, now_ms: int) -> bool:
        """Send no requests to `endpoint` until `readmit`. False if it is already ejected."""
        endpoint, live = without_slots(endpoint), self.endpoints()
        self._prefixes.keep(live - {endpoint})  # if its engine restarts, its cache is empty
        return endpoint in live and self._ejections.eject(endpoint, now_ms)

    def due_probes(self, now_ms: int) -> tuple[Endpoint, ...]:
        """Ejected endpoints to probe now; the wait until the next probe doubles each time."""
        return self._ejections.due(now_ms)

    def readmit(self, endpoint: Endpoint) -> bool:
        """Use `endpoint` again after a successful probe. False if it was not ejected."""
        return self._ejections.readmit(without_slots(endpoint))

    def endpoints(self) -> frozenset[Endpoint]:
        """Every endpoint in the routes, including ejected ones."""
        rings = [ring for lane in self._lanes for ring in (lane.first, lane.decode) if ring]
        alone = frozenset(endpoint for ring in rings for endpoint in ring.endpoints)
        return alone | self._paths.endpoints()

    def ejected(self) -> frozenset[Endpoint]:
        """The endpoints that receive no requests now."""
        return self._ejections.out


def _rank(routes: Routes) -> tuple[int, int]:
    return routes.leader_token, routes.generation
