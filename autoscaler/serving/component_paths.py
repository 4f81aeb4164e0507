"""Request-static routing through a model of components: one path per request, chosen once.

Owns the choice among the planned paths of a request's kind and the turns of instances within a
stage. It asks no queue: the plan has balanced the stages already, and a path costs one decision
however many hops it has (Cornserve sec. 5.3). The shares are kept by turns and not by lot
(`serving.ways`). Gateways and the simulator use the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from autoscaler.serving.traffic_classes import Ways
from topics.records import Endpoint, RequestKind, RouteGroup
from topics.routing import Hop, RoutePath


@dataclass(frozen=True, slots=True)
class Way:
    """The path of one request: its kind, and the stages of `group` that it visits in turn."""

    group: str
    kind: str
    hops: tuple[Hop, ...]

    @property
    def name(self) -> str:
        """The stages, in order: what people and telemetry call the path."""
        return name_of(self.hops)


def name_of(hops: Iterable[Hop]) -> str:
    """Stages in order, "audio/llm/talker"."""
    return "/".join(hop.stage for hop in hops)


@dataclass(slots=True)
class _Turn:
    """The instances of one stage, in turn."""

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
class Paths:
    """The planned paths of one model. Not shared between threads."""

    _ways: Ways = field(default_factory=Ways)
    _of: dict[str, dict[str, Way]] = field(default_factory=dict)
    _stages: dict[tuple[str, str], _Turn] = field(default_factory=dict)

    def apply(self, groups: Iterable[RouteGroup]) -> None:
        """Go by the paths of `groups` from now on. What paths that stay are owed is remembered."""
        turns = {key: turn.at for key, turn in self._stages.items()}
        rates: dict[str, dict[str, float]] = {}
        self._of, self._stages = {}, {}
        for group in groups:
            for stage in group.stages:
                ends = tuple(Endpoint(end.instance, end.address) for end in stage.endpoints)
                at = turns.get((group.group, stage.name), 0) % len(ends)
                self._stages[group.group, stage.name] = _Turn(ends, at)
            for path in group.paths:
                if path.req_per_s > 0.0:
                    way = Way(group.group, path.type, path.hops)
                    key = f"{way.group} {way.name}"
                    self._of.setdefault(path.type, {})[key] = way
                    rates.setdefault(path.type, {})[key] = path.req_per_s
        self._ways = self._ways.shared(
            {kind: _normalised(of_kind) for kind, of_kind in rates.items()}
        )

    def __bool__(self) -> bool:
        return bool(self._of)

    def sample(self, kind: str, out: Collection[Endpoint] = frozenset()) -> Way | None:
        """The path of the next request of `kind`; None where no path of the kind is usable.

        out: instances that get nothing now; a path needs one outside of it at each of its hops.
        """
        ways = self._of.get(kind, {})
        usable = {key for key, way in ways.items() if self._is_usable(way, out)}
        return ways[self._ways.next(kind, usable, usable)] if usable else None

    def endpoint(
        self, way: Way, hop: int, out: Collection[Endpoint] = frozenset()
    ) -> Endpoint | None:
        """The instance for hop number `hop` of `way`: the next one of its stage, by the routes of
        this moment. Where its group has left them, the same stage of another group; None where
        there is none."""
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
        """Whether some path is usable, of `kind` where one is named."""
        kinds = [self._of.get(kind, {})] if kind else self._of.values()
        return any(self._is_usable(way, out) for ways in kinds for way in ways.values())

    def endpoints(self) -> frozenset[Endpoint]:
        """Every instance of every stage."""
        return frozenset(end for turn in self._stages.values() for end in turn.endpoints)

    def _is_usable(self, way: Way, out: Collection[Endpoint]) -> bool:
        return all(
            any(end not in out for end in self._stages[way.group, hop.stage].endpoints)
            for hop in way.hops
        )


def kind_with(kinds: Iterable[RequestKind], media: frozenset[str]) -> str | None:
    """The kind of a request that has `media`: the one with just these, else the one with fewest
    more (an encoder without input costs nothing); None where none has them all."""
    able = [kind for kind in kinds if media <= set(kind.media)]
    return min(able, key=lambda kind: (len(kind.media), kind.name)).name if able else None


def planned_shares(groups: Iterable[RouteGroup]) -> dict[str, Mapping[str, float]]:
    """Kind -> path -> the share of its requests that is planned to go there, over all groups."""
    rates: dict[str, dict[str, float]] = {}
    for group in groups:
        for path in group.paths:
            _add(rates.setdefault(path.type, {}), path)
    return {kind: _normalised(of) for kind, of in rates.items() if sum(of.values()) > 0.0}


def _add(rates: dict[str, float], path: RoutePath) -> None:
    name = name_of(path.hops)
    rates[name] = rates.get(name, 0.0) + path.req_per_s


def _normalised(rates: Mapping[str, float]) -> Mapping[str, float]:
    total = sum(rates.values())
    return {name: rate / total for name, rate in rates.items()}
