"""Request-static routing through a model of components: each request gets its path once, from the
planned paths of its class. The instances of a stage take turns. Queue lengths do not matter,
because the plan balances the stages; so a path needs one decision for any number of hops (Cornserve
sec. 5.3). Weighted rotation keeps the planned shares (`traffic_classes`). Gateways and the
simulator use this module.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.traffic_classes import ClassShares
from topics.records import Endpoint, RequestKind, RouteGroup
from topics.routing import Hop, RoutePath


@dataclass(frozen=True, slots=True)
class ComponentPath:
    """The path of one request: its class, and the stages of `group` in the order of visits."""

    group: str
    kind: str
    hops: tuple[Hop, ...]

    @property
    def name(self) -> str:
        """The stages in order; telemetry uses this text as the name of the path."""
        return path_name(self.hops)


def path_name(hops: Iterable[Hop]) -> str:
    """The stages in order, e.g. "audio/llm/talker"."""
    return "/".join(hop.stage for hop in hops)


@dataclass(slots=True)
class _StageRotation:
    """Round robin over the instances of one stage."""

    endpoints: tuple[Endpoint, ...]
    at: int = 0

    def next(self, out: Collection[Endpoint]) -> Endpoint | None:
        for step in range(len(self.endpoints)):
            place = (self.at + step) % len(self.endpoints)
            if self.endpoints[place] not in out:
                self.at = (place + 1) % len(self.endpoints)
                return self.endpoints[place]
        return None


@dataclass(slots=True)
class ComponentPaths:
    """The planned paths of one model. Not shared between threads."""

    _ways: ClassShares = field(default_factory=ClassShares)
    _of: dict[str, dict[str, ComponentPath]] = field(default_factory=dict)
    _stages: dict[tuple[str, str], _StageRotation] = field(default_factory=dict)

    def apply(self, groups: Iterable[RouteGroup]) -> None:
        """Use the paths of `groups` from now on. A path that was in use before keeps its surplus or
        deficit of requests."""
        turns = {key: turn.at for key, turn in self._stages.items()}
        rates: dict[str, dict[str, float]] = {}
        self._of, self._stages = {}, {}
        for group in groups:
            for stage in group.stages:
                ends = tuple(Endpoint(end.instance, end.address) for end in stage.endpoints)
                at = turns.get((group.group, stage.name), 0) % len(ends)
                self._stages[group.group, stage.name] = _StageRotation(ends, at)
            for path in group.paths:
                if path.req_per_s > 0.0:
                    way = ComponentPath(group.group, path.type, path.hops)
                    key = f"{way.group} {way.name}"
                    self._of.setdefault(path.type, {})[key] = way
                    rates.setdefault(path.type, {})[key] = path.req_per_s
        self._ways = self._ways.with_shares(
            {kind: _normalised(of_kind) for kind, of_kind in rates.items()}
        )

    def __bool__(self) -> bool:
        return bool(self._of)

    def sample(self, kind: str, out: Collection[Endpoint] = frozenset()) -> ComponentPath | None:
        """The path of the next request of class `kind`; None if no path of that class is usable. A
        path is usable if each of its hops has an instance outside `out`.
        """
        ways = self._of.get(kind, {})
        usable = {key for key, way in ways.items() if self._is_usable(way, out)}
        return ways[self._ways.next_group(kind, usable, usable)] if usable else None

    def endpoint(
        self, way: ComponentPath, hop: int, out: Collection[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The instance for hop number `hop` of `way`: the next instance of its stage in the present
        routes.

        If the group is no longer in the routes, it is an instance of the same stage in another
        group; None if there is none.
        """
        stage = way.hops[hop].stage
        own = self._stages.get((way.group, stage))
        found = own.next(out) if own is not None else None
        for (_, name), turn in self._stages.items():
            if found is not None:
                break
            if name == stage:
                found = turn.next(out)
        return found

    def is_open(self, out: Collection[Endpoint] = frozenset(), kind: str = "") -> bool:
        """Whether any path of class `kind` is usable (of any class if `kind` is "")."""
        kinds = [self._of.get(kind, {})] if kind else self._of.values()
        return any(self._is_usable(way, out) for ways in kinds for way in ways.values())

    def endpoints(self) -> frozenset[Endpoint]:
        """Every instance of every stage."""
        return frozenset(end for turn in self._stages.values() for end in turn.endpoints)

    def _is_usable(self, way: ComponentPath, out: Collection[Endpoint]) -> bool:
        return all(
            any(end not in out for end in self._stages[way.group, hop.stage].endpoints)
            for hop in way.hops
        )


def kind_with(kinds: Iterable[RequestKind], media: frozenset[str]) -> str | None:
    """The class of a request with `media`: the class with exactly these media, else the class with
    the fewest additional media (their encoders get no input and cost nothing). None if no class has
    all of them."""
    able = [kind for kind in kinds if media <= set(kind.media)]
    return min(able, key=lambda kind: (len(kind.media), kind.name)).name if able else None


def planned_shares(groups: Iterable[RouteGroup]) -> dict[str, Mapping[str, float]]:
    """Planned share of each path among the requests of its class (class -> path -> share), over all
    groups."""
    rates: dict[str, dict[str, float]] = {}
    for group in groups:
        for path in group.paths:
            _add(rates.setdefault(path.type, {}), path)
    return {kind: _normalised(of) for kind, of in rates.items() if sum(of.values()) > 0.0}


def _add(rates: dict[str, float], path: RoutePath) -> None:
    name = path_name(path.hops)
    rates[name] = rates.get(name, 0.0) + path.req_per_s


def _normalised(rates: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}
